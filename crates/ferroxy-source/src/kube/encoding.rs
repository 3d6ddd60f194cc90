//! The encodings of the API: which ones requests ask for, and which one an answer has.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

use super::Options;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: &str = "application/json";

/// After this many unreadable answers in a row, JSON is requested instead.
const UNREADABLE: u32 = 3;

/// The encoding of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Encoding {
    #[default]
    Json,
    Protobuf,
}

impl Encoding {
    /// The encoding that the server states. Everything but protobuf is read as JSON, whatever was requested: some
    /// servers state nothing, and the error page of a proxy is neither.
    pub(super) fn of(headers: &HeaderMap) -> Encoding {
        let content_type = headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or_default();
        if media_type(content_type) == PROTOBUF { Encoding::Protobuf } else { Encoding::Json }
    }

    /// The name for an event of a watch.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Encoding::Json => "line",
            Encoding::Protobuf => "frame",
        }
    }
}

/// The encodings that requests accept: as configured, until the server turns out not to support them.
#[derive(Debug, Clone)]
pub(super) struct Accept {
    configured: HeaderValue,
    json_only: bool,
    /// Answers in protobuf that could not be read, in a row.
    unreadable: u32,
}

impl Accept {
    /// As kube-proxy reads its configuration: `acceptContentTypes` if there are any, else `contentType` and JSON. Types
    /// that we cannot read are left out; if none is left, both encodings are requested.
    pub(super) fn new(options: &Options) -> Accept {
        let Options { accept_content_types, content_type, .. } = options;
        let wanted = match accept_content_types.trim() {
            "" => format!("{content_type}, {JSON}"),
            types => types.to_owned(),
        };
        let configured = Some(readable(&wanted)).filter(|it| !it.is_empty());
        let configured = configured.unwrap_or_else(|| format!("{PROTOBUF}, {JSON}"));
        // The types were checked above. If a parameter is not valid in a header, JSON is always right.
        let configured = HeaderValue::from_str(&configured).unwrap_or(HeaderValue::from_static(JSON));
        Accept { configured, json_only: false, unreadable: 0 }
    }

    /// The value of the header `Accept`.
    pub(super) fn header(&self) -> HeaderValue {
        if self.json_only { HeaderValue::from_static(JSON) } else { self.configured.clone() }
    }

    /// The server refuses the requested encodings: JSON is next. False if only JSON was requested.
    pub(super) fn refused(&mut self) -> bool {
        let changes = !self.json_only && self.configured != JSON;
        self.json_only = true;
        changes
    }

    /// An answer could not be read.
    pub(super) fn unreadable(&mut self, encoding: Encoding) {
        if encoding == Encoding::Protobuf {
            self.unreadable += 1;
            self.json_only |= self.unreadable >= UNREADABLE;
        }
    }

    /// An answer could be read.
    pub(super) fn readable(&mut self) {
        self.unreadable = 0;
    }

    /// Starts over for another server.
    pub(super) fn reset(&mut self) {
        (self.json_only, self.unreadable) = (false, 0);
    }
}

/// The listed media types that we can read, with their parameters and in their order, each once.
fn readable(types: &str) -> String {
    let mut kept: Vec<(&str, &str)> = Vec::new();
    for entry in types.split(',').map(str::trim) {
        let known = match media_type(entry) {
            it if it == PROTOBUF => PROTOBUF,
            it if it == JSON => JSON,
            "*/*" | "application/*" => JSON,
            _ => continue,
        };
        if kept.iter().all(|(it, _)| *it != known) {
            kept.push((known, entry.split_once(';').map_or("", |(_, parameters)| parameters.trim())));
        }
    }
    let written = kept.into_iter().map(|(known, parameters)| match parameters {
        "" => known.to_owned(),
        parameters => format!("{known};{parameters}"),
    });
    written.collect::<Vec<_>>().join(", ")
}

/// The type without parameters such as `;charset=utf-8`.
fn media_type(text: &str) -> &str {
    text.split(';').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(accept_content_types: &str, content_type: &str) -> Accept {
        Accept::new(&Options {
            accept_content_types: accept_content_types.to_owned(),
            content_type: content_type.to_owned(),
            ..Options::for_node("ka")
        })
    }

    #[test]
    fn what_is_configured_is_requested() {
        let both = "application/vnd.kubernetes.protobuf, application/json";
        for (types, content_type, expected) in [
            ("", PROTOBUF, both),
            ("", JSON, JSON),
            ("", "application/json;charset=utf-8", "application/json;charset=utf-8"),
            ("", "", JSON),
            ("", "application/yaml", JSON),
            (PROTOBUF, JSON, PROTOBUF),
            (
                "application/json, application/vnd.kubernetes.protobuf;q=0.5",
                PROTOBUF,
                "application/json, application/vnd.kubernetes.protobuf;q=0.5",
            ),
            ("application/vnd.kubernetes.protobuf,*/*", "", both),
            ("application/cbor, application/yaml", "", both),
            ("application/json;a=\u{1}b", "", JSON),
        ] {
            assert_eq!(accept(types, content_type).header(), expected, "{types:?} {content_type:?}");
        }
    }

    #[test]
    fn what_the_server_says_it_is() {
        let of = |text: &'static str| {
            Encoding::of(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(text))]))
        };
        assert_eq!(of(PROTOBUF), Encoding::Protobuf);
        assert_eq!(of("application/vnd.kubernetes.protobuf;stream=watch"), Encoding::Protobuf);
        assert_eq!(of("application/json"), Encoding::Json);
        assert_eq!(of("text/html"), Encoding::Json);
        assert_eq!(Encoding::of(&HeaderMap::new()), Encoding::Json);
    }

    #[test]
    fn a_refusal_leads_to_json_once() {
        let mut protobuf = accept("", PROTOBUF);
        assert!(protobuf.refused());
        assert_eq!(protobuf.header(), JSON);
        assert!(!protobuf.refused(), "there is nothing else to request");
        protobuf.reset();
        assert_ne!(protobuf.header(), JSON, "another server");
        assert!(!accept("", JSON).refused());
    }

    #[test]
    fn protobuf_that_stays_unreadable_leads_to_json() {
        let mut accept = accept("", PROTOBUF);
        for _ in 0..10 {
            accept.unreadable(Encoding::Json);
        }
        for _ in 1..UNREADABLE {
            accept.unreadable(Encoding::Protobuf);
        }
        assert_ne!(accept.header(), JSON);
        accept.readable();
        for _ in 0..UNREADABLE {
            assert_ne!(accept.header(), JSON);
            accept.unreadable(Encoding::Protobuf);
        }
        assert_eq!(accept.header(), JSON);
    }
}
