//! Tables taken apart, edited and put together, without a kernel.

use super::super::assembly::Unassembled;
use super::super::table::tests::{RULE, kept, reread, table};
use super::super::{Family, Replacement};
use super::*;

fn jump(parts: &mut Parts, to: ChainId) -> Rule {
    parts.add(Goal::Chain(to), |bytes| {
        put_entry(Layout::of(Family::Ip), bytes, "", STANDARD_SIZE);
    })
}

/// Every chain with the goals of its rules, in the order of the table.
fn outline(replacement: &Replacement) -> Vec<(String, Vec<String>)> {
    let parts = Parts::new(reread(replacement)).unwrap();
    let rule = |rule: Rule| match parts.leads(rule) {
        Leads::Chain(to) => to.to_owned(),
        other => format!("{other:?}"),
    };
    parts.chains().map(|(id, name, _)| (name.to_owned(), parts.rules(id).map(rule).collect())).collect()
}

fn outlined(chains: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
    let texts = |rules: &[&str]| rules.iter().map(ToString::to_string).collect();
    chains.iter().map(|(name, rules)| ((*name).to_owned(), texts(rules))).collect()
}

#[test]
fn put_together_it_is_the_same_but_for_the_order_of_chains() {
    let parts = Parts::new(table()).unwrap();
    let chains: Vec<(&str, bool, usize)> =
        parts.chains().map(|(id, name, builtin)| (name, builtin, parts.rules(id).len())).collect();
    assert_eq!(chains, [("PREROUTING", true, 2), ("theirs", false, 1), ("mine", false, 1)]);
    let again = parts.replacement().unwrap();
    assert_eq!(reread(&again).bytes().len(), table().bytes().len());
    let order: Vec<usize> = kept(&again).into_iter().flatten().collect();
    assert_eq!(order, [0, 1, 2, 6, 7, 8, 3, 4, 5, 9], "mine comes before theirs");
    let expected = outlined(&[("PREROUTING", &["theirs", "mine"]), ("mine", &["On"]), ("theirs", &["mine"])]);
    assert_eq!(outline(&again), expected);
    let once_more = Parts::new(reread(&again)).unwrap().replacement().unwrap();
    assert_eq!((once_more.message, once_more.info), (again.message, again.info));
}

#[test]
fn new_chains_and_rules_lead_where_they_should() {
    let mut parts = Parts::new(table()).unwrap();
    let new = parts.create("new");
    assert_eq!((parts.create("new"), parts.find("new")), (new, Some(new)));
    let [builtin, theirs] = ["PREROUTING", "theirs"].map(|name| parts.find(name).unwrap());
    let to_new = jump(&mut parts, new);
    parts.rules_mut(builtin).insert(0, to_new);
    let to_theirs = jump(&mut parts, theirs);
    *parts.rules_mut(new) = vec![to_theirs, to_new];
    parts.rules_mut(theirs).clear();
    assert_eq!(parts.leads(to_theirs), Leads::Chain("theirs"));
    let replacement = parts.replacement().unwrap();
    let expected = outlined(&[
        ("PREROUTING", &["new", "theirs", "mine"]),
        ("mine", &["On"]),
        ("new", &["theirs", "new"]),
        ("theirs", &[]),
    ]);
    assert_eq!(outline(&replacement), expected);
    assert_eq!(kept(&replacement)[..3], [None, Some(0), Some(1)]);
    assert_eq!(u32_at(&replacement.info, INFO_UNDERFLOWS), 3 * RULE as u32);
}

#[test]
fn a_rule_before_the_first_one_of_a_chain_is_where_others_lead() {
    let mut parts = Parts::new(table()).unwrap();
    let [mine, theirs] = ["mine", "theirs"].map(|name| parts.find(name).unwrap());
    let rule = jump(&mut parts, theirs);
    parts.rules_mut(mine).insert(0, rule);
    let expected =
        outlined(&[("PREROUTING", &["theirs", "mine"]), ("mine", &["theirs", "On"]), ("theirs", &["mine"])]);
    assert_eq!(outline(&parts.replacement().unwrap()), expected);
}

#[test]
fn a_rule_that_leads_nowhere_is_found() {
    let mut parts = Parts::new(table()).unwrap();
    let theirs = parts.find("theirs").unwrap();
    parts.remove(theirs);
    assert_eq!(parts.find("theirs"), None);
    let dangling = |chain: &str, rule| Some(Unassembled::Dangling { chain: chain.to_owned(), rule });
    assert_eq!(parts.replacement().err(), dangling("PREROUTING", 0));
    // Created again, it has no rules.
    assert_eq!(parts.create("theirs"), theirs);
    let expected = outlined(&[("PREROUTING", &["theirs", "mine"]), ("mine", &["On"]), ("theirs", &[])]);
    assert_eq!(outline(&parts.replacement().unwrap()), expected);
    let new = parts.create("new");
    let (rule, mine) = (jump(&mut parts, new), parts.find("mine").unwrap());
    parts.rules_mut(mine).push(rule);
    parts.remove(new);
    assert_eq!((parts.find("new"), parts.replacement().err()), (None, dangling("mine", 1)));
}

/// Compares with a model: chains with the goals of their rules.
#[test]
fn any_series_of_edits_gives_the_table_that_was_meant() {
    let names = ["a", "b", "mine", "n", "theirs", "z"];
    let mut model: BTreeMap<&str, Vec<&str>> =
        [("mine", vec!["On"]), ("theirs", vec!["mine"])].into_iter().collect();
    let mut builtin = vec!["theirs", "mine"];
    let mut read = table();
    let mut random = 7_u32;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as usize % below
    };
    for _ in 0..500 {
        let mut parts = Parts::new(read).unwrap();
        for _ in 0..draw(6) {
            let (name, to) = (names[draw(names.len())], names[draw(names.len())]);
            let is_used = builtin.contains(&name) || model.values().any(|rules| rules.contains(&name));
            match draw(5) {
                0 if model.contains_key(name) && !is_used => {
                    parts.remove(parts.find(name).unwrap());
                    model.remove(name);
                }
                1 => {
                    parts.create(name);
                    model.entry(name).or_default();
                }
                2 if model.contains_key(name) => {
                    parts.rules_mut(parts.find(name).unwrap()).clear();
                    model.insert(name, Vec::new());
                }
                3 if model.contains_key(to) => {
                    let goal = parts.find(to).unwrap();
                    let rule = jump(&mut parts, goal);
                    let place = draw(builtin.len() + 1);
                    parts.rules_mut(ChainId(0)).insert(place, rule);
                    builtin.insert(place, to);
                }
                4 if model.contains_key(to) && model.contains_key(name) => {
                    let goal = parts.find(to).unwrap();
                    let rule = jump(&mut parts, goal);
                    parts.rules_mut(parts.find(name).unwrap()).insert(0, rule);
                    model.entry(name).or_default().insert(0, to);
                }
                _ => {
                    parts.rules_mut(ChainId(0)).pop();
                    builtin.pop();
                }
            }
        }
        let replacement = parts.replacement().unwrap();
        let mut expected = vec![("PREROUTING", builtin.as_slice())];
        expected.extend(model.iter().map(|(name, rules)| (*name, rules.as_slice())));
        assert_eq!(outline(&replacement), outlined(&expected));
        read = reread(&replacement);
    }
}
