//! Label and field selectors, as far as clients use them. An unknown selector is an error: ignoring it silently would let a
//! test pass for the wrong reason.

use super::object::Object;

/// All of its terms must hold. Without terms it selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    of: Of,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Of {
    Label(String),
    Field(Field),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
    ClusterIp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    Equals(String),
    /// One of these.
    In(Vec<String>),
    /// Also true if the label is missing, as in Kubernetes.
    Differs(String),
}

impl Selector {
    /// From the parameters `labelSelector` and `fieldSelector`. The error is for the client.
    pub fn parse(labels: &str, fields: &str) -> Result<Selector, String> {
        let labels = terms(labels).map(label_term);
        let fields = terms(fields).map(field_term);
        Ok(Selector { terms: labels.chain(fields).collect::<Result<_, _>>()? })
    }

    pub fn matches(&self, object: &Object) -> bool {
        self.terms.iter().all(|term| term.holds_for(object))
    }
}

impl Term {
    fn holds_for(&self, object: &Object) -> bool {
        let value = match &self.of {
            Of::Label(name) => object.labels.get(name).map(String::as_str),
            Of::Field(Field::Name) => Some(object.key.name.as_str()),
            Of::Field(Field::Namespace) => Some(object.key.namespace.as_str()),
            Of::Field(Field::ClusterIp) => Some(object.cluster_ip.as_str()),
        };
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::Equals(wanted) => value == Some(wanted),
            Test::In(wanted) => value.is_some_and(|value| wanted.iter().any(|it| it == value)),
            Test::Differs(unwanted) => value != Some(unwanted),
        }
    }
}

/// Commas separate terms. (Inside parentheses they separate values.)
fn terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let divides = move |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    };
    selector.split(divides).map(str::trim).filter(|term| !term.is_empty())
}

fn label_term(term: &str) -> Result<Term, String> {
    let (name, test) = match (comparison(term), term.strip_prefix('!')) {
        (Some((name, test)), _) => (name, test),
        (None, Some(name)) => (name.trim(), Test::Absent),
        (None, None) => (term, Test::Exists),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!("unable to parse requirement: {term:?} is not understood by this test server"));
    }
    Ok(Term { of: Of::Label(name.to_owned()), test })
}

fn field_term(term: &str) -> Result<Term, String> {
    let (name, test) = comparison(term).ok_or_else(|| format!("invalid field selector: {term:?}"))?;
    let field = match name {
        "metadata.name" => Field::Name,
        "metadata.namespace" => Field::Namespace,
        "spec.clusterIP" => Field::ClusterIp,
        _ => return Err(format!("field label not supported: {name}")),
    };
    Ok(Term { of: Of::Field(field), test })
}

fn comparison(term: &str) -> Option<(&str, Test)> {
    // `==` before `=`: both mean the same comparison.
    if let Some((name, value)) = term.split_once("!=") {
        return Some((name.trim(), Test::Differs(value.trim().to_owned())));
    }
    if let Some((name, values)) = term.strip_suffix(')').and_then(|term| term.split_once(" in (")) {
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        return Some((name.trim(), Test::In(values)));
    }
    let (name, value) = term.split_once("==").or_else(|| term.split_once('='))?;
    Some((name.trim(), Test::Equals(value.trim().to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(labels: serde_json::Value, cluster_ip: &str) -> Object {
        let metadata = json!({"name": "web", "namespace": "shop", "labels": labels});
        let service = json!({"kind": "Service", "metadata": metadata, "spec": {"clusterIP": cluster_ip}});
        Object::read(service.to_string().as_bytes(), 1).unwrap()
    }

    fn selects(labels: &str, fields: &str, object: &Object) -> bool {
        Selector::parse(labels, fields).unwrap().matches(object)
    }

    #[test]
    fn labels() {
        let object = service(json!({"app": "web", "tier": ""}), "10.96.0.80");
        for selector in [
            "",
            "app",
            "!other",
            "app=web",
            "app==web",
            "app!=api",
            "other!=x",
            "tier=",
            " app = web , !other",
            "app in (api,web),tier",
        ] {
            assert!(selects(selector, "", &object), "{selector}");
        }
        for selector in ["app in (api, x)", "other in (web)", "app in (web),other"] {
            assert!(!selects(selector, "", &object), "{selector}");
        }
        for selector in ["other", "!app", "app=api", "app!=web", "other=x", "app=web,other", "app="] {
            assert!(!selects(selector, "", &object), "{selector}");
        }
    }

    #[test]
    fn fields() {
        let (normal, headless) = (service(json!({}), "10.96.0.80"), service(json!({}), "None"));
        assert!(selects("", "spec.clusterIP!=None", &normal));
        assert!(!selects("", "spec.clusterIP!=None", &headless));
        assert!(selects("", "metadata.name=web,metadata.namespace=shop", &normal));
        assert!(!selects("", "metadata.name=api", &normal));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (labels, fields) in [
            ("app notin (a,b)", ""),
            ("app in (a", ""),
            ("!", ""),
            ("", "spec.type=NodePort"),
            ("", "metadata.name"),
        ] {
            Selector::parse(labels, fields).unwrap_err();
        }
    }
}
