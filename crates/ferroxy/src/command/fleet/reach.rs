//! Access to the agents: finds their pods, reads the token of their pages, and queries many of them at a time. For a node
//! that does not answer, the result is the reason.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::Args;
use ferroxy_core::foreign::printable;
use ferroxy_source::kube::{AgentPod, AskError, Person, Target};
use serde_json::Value;

use super::is_name;
use crate::client::{DEFAULT_PORT, read_token};
use crate::command::Output;
use crate::log;
use crate::progress::while_waiting;

/// Agents that are asked at a time.
const AT_A_TIME: usize = 16;

/// For names of Services: the most agents to query until one answers, the most names, and the most bytes of the answer.
const AGENTS_FOR_NAMES: usize = 3;
const MOST_NAMES: usize = 1000;
const LARGEST_NAMES: usize = 4 << 20;

/// The labels of our DaemonSets, for Linux and for Windows.
const LABELS: &str = "k8s-app in (kube-proxy,kube-proxy-windows)";

/// The key of the token in its Secret.
const KEY: &str = "token";

/// Flags of every command.
#[derive(Debug, Args)]
pub struct Reach {
    /// The kubeconfig; without it $KUBECONFIG, ~/.kube/config, or the service account of the pod
    #[arg(long, global = true, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The namespace of the Service and of the pod, without it that of the context; for `top`: only Services of this namespace
    #[arg(long, short, global = true, value_name = "NAME")]
    namespace: Option<String>,
    /// The namespace in which the agents run
    #[arg(long, global = true, value_name = "NAME", default_value = "kube-system")]
    agents_namespace: String,
    /// The labels of the agents' pods
    #[arg(long, short = 'l', global = true, value_name = "LABELS", default_value = LABELS)]
    selector: String,
    /// The port of the agents' pages; without it, the pod's container port `page`, or 10261
    #[arg(long, global = true, value_name = "PORT")]
    agents_port: Option<u16>,
    /// File with the token of the pages; without it, the token is read from a Secret
    #[arg(long, global = true, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// The Secret in the agents' namespace with the token, in the key `token`
    #[arg(long, global = true, value_name = "NAME", default_value = "ferroxy-page")]
    token_secret: String,
    /// Seconds that one answer may take
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
    /// How to print it
    #[arg(long, short, global = true, value_enum, default_value_t)]
    pub output: Output,
}

/// All agents of the cluster.
#[derive(Debug)]
pub struct Agents {
    pub person: Person,
    pub namespace: String,
    pub pods: Vec<AgentPod>,
    agents_namespace: String,
    selector: String,
    port: Option<u16>,
    token: Option<String>,
    /// Why there is no token.
    no_token: Option<String>,
}

/// The answer of one node, or the reason why there is none.
#[derive(Debug)]
pub struct Said {
    pub node: String,
    /// Empty if no agent is on that node.
    pub pod: String,
    pub answer: Result<Value, Reason>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// Printable.
    pub words: String,
    /// The HTTP status, if the agent itself answered with an error.
    pub code: Option<u16>,
}

impl From<&str> for Reason {
    fn from(words: &str) -> Reason {
        Reason { words: printable(words).into_owned(), code: None }
    }
}

impl Reach {
    /// The same settings for shell completion, with this namespace if one is given.
    pub fn for_completion(self, namespace: Option<&str>, timeout: u64) -> Reach {
        Reach { namespace: namespace.map(str::to_owned).or(self.namespace), timeout, ..self }
    }

    /// The names of all pods of the namespace.
    pub fn pod_names(&self) -> anyhow::Result<Vec<String>> {
        let person = self.person()?;
        let pods = person.pods(self.namespace_of(&person), "")?;
        Ok(pods.into_iter().map(|pod| pod.name).collect())
    }

    /// The names of Services of the namespace, from the first of a few agents that answers.
    pub fn service_names(&self) -> anyhow::Result<Vec<String>> {
        let agents = self.open()?;
        let prefix = format!("{}/", agents.namespace);
        // `-` sorts before all names.
        let path = format!("services?limit={MOST_NAMES}&after={prefix}-");
        for pod in agents.pods.chunks(1).take(AGENTS_FOR_NAMES) {
            let said = agents.ask_these(pod, &path, LARGEST_NAMES).pop();
            let Some(Ok(list)) = said.map(|said| said.answer) else { continue };
            let services = list["items"].as_array().into_iter().flatten();
            let names = services.filter_map(|service| service["name"].as_str()?.strip_prefix(&prefix));
            return Ok(names.map(str::to_owned).collect());
        }
        bail!("no agent answers")
    }

    fn person(&self) -> anyhow::Result<Person> {
        let named = [Some(&self.agents_namespace), self.namespace.as_ref(), Some(&self.token_secret)];
        for name in named.into_iter().flatten() {
            ensure!(is_name(name), "`{name}` is not a name of an object");
        }
        let limit = Duration::from_secs(self.timeout);
        Ok(Person::open(self.kubeconfig.as_deref(), self.context.as_deref(), limit)?)
    }

    /// The namespace that the flag names.
    pub fn named_namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    fn namespace_of<'a>(&'a self, person: &'a Person) -> &'a str {
        self.namespace.as_deref().unwrap_or_else(|| person.namespace())
    }

    /// Finds the agents. Fails only if they cannot be found; an agent that does not answer is not an error.
    pub fn open(&self) -> anyhow::Result<Agents> {
        let person = self.person()?;
        let list = || person.pods(&self.agents_namespace, &self.selector);
        let pods = while_waiting("asking the API server", list)?;
        if pods.is_empty() {
            bail!(
                "no pod in namespace {} has the labels `{}`: name those of the agents with --agents-namespace and --selector",
                self.agents_namespace,
                self.selector
            );
        }
        let (token, no_token) = self.token(&person)?;
        Ok(Agents {
            namespace: self.namespace_of(&person).to_owned(),
            person,
            pods,
            agents_namespace: self.agents_namespace.clone(),
            selector: self.selector.clone(),
            port: self.agents_port,
            token,
            no_token,
        })
    }

    /// Agents on loopback have no token, and cannot be reached; all others have one. So a missing token matters only if an agent
    /// requires one.
    fn token(&self, person: &Person) -> anyhow::Result<(Option<String>, Option<String>)> {
        if let Some(path) = &self.token_file {
            return Ok((Some(read_token(path)?), None));
        }
        match person.secret(&self.agents_namespace, &self.token_secret, KEY) {
            Ok(token) => {
                let token = token.trim().to_owned();
                let is_usable = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
                ensure!(is_usable, "the Secret {} holds no usable token", self.token_secret);
                Ok((Some(token), None))
            }
            Err(error @ (AskError::Unauthorized { .. } | AskError::NoServer { .. })) => Err(error.into()),
            Err(error) => Ok((None, Some(error.to_string()))),
        }
    }
}

impl Agents {
    /// Asks all agents. `largest`: the most bytes of an answer.
    pub fn ask(&self, path: &str, largest: usize) -> Vec<Said> {
        self.ask_these(&self.pods, path, largest)
    }

    /// The same for all nodes, including those without an agent. Without permission to list nodes, it prints a line about that,
    /// and returns the other answers and the reason.
    pub fn ask_everywhere(&self, path: &str, largest: usize) -> (Vec<Said>, Option<String>) {
        let (nodes, not_listed) = match while_waiting("asking the API server", || self.person.nodes()) {
            Ok(nodes) => (nodes, None),
            Err(error) => (Vec::new(), Some(printable(&error.to_string()).into_owned())),
        };
        if let Some(why) = &not_listed {
            log::print_error(&format!("kubectl ferroxy: nodes without an agent are not listed: {why}"));
        }
        let mut all = self.ask(path, largest);
        all.extend(without_agent(nodes, &self.pods).map(|node| self.nobody_on(node)));
        all.sort_by(|a, b| a.node.cmp(&b.node));
        (all, not_listed)
    }

    fn nobody_on(&self, node: String) -> Said {
        let Agents { agents_namespace, selector, .. } = self;
        let words = format!("no pod of namespace {agents_namespace} with the labels `{selector}` is on it");
        let answer = Err(words.as_str().into());
        Said { node: printable(&node).into_owned(), pod: String::new(), answer }
    }

    pub fn ask_these(&self, pods: &[AgentPod], path: &str, largest: usize) -> Vec<Said> {
        let reachable = pods.iter().filter(|pod| unreachable(pod).is_none());
        let targets = reachable.map(|pod| self.target(pod, path, largest)).collect();
        let ask = || self.person.ask_all(targets, self.token.as_deref(), AT_A_TIME);
        let mut answers = while_waiting("asking the agents", ask).into_iter();
        let said = |pod: &AgentPod| {
            let answer = match unreachable(pod) {
                Some(reason) => Err(reason.as_str().into()),
                None => {
                    let answer = answers.next().unwrap_or(Err(AskError::Other("not asked".to_owned())));
                    answer.map_err(|error| self.reason(&error))
                }
            };
            Said { node: node_of(pod), pod: pod.name.clone(), answer }
        };
        pods.iter().map(said).collect()
    }

    fn target(&self, pod: &AgentPod, path: &str, largest: usize) -> Target {
        let port = self.port.or(pod.page_port).unwrap_or(DEFAULT_PORT);
        let (namespace, path) = (self.agents_namespace.clone(), format!("api/v1/{path}"));
        Target { namespace, pod: pod.name.clone(), port, path, largest }
    }

    /// The text includes what to do about the error.
    fn reason(&self, error: &AskError) -> Reason {
        let code = match error {
            AskError::Agent { code, .. } => Some(*code),
            _ => None,
        };
        let words = self.words(error);
        Reason { words: printable(&words).into_owned(), code }
    }

    fn words(&self, error: &AskError) -> String {
        match (error, &self.no_token) {
            (AskError::Agent { code: 401, message }, Some(no_token)) => {
                format!("{message}; no token found: {no_token} (or use --token-file)")
            }
            (AskError::Agent { code: 401, message }, None) => {
                format!("{message}: the agent's --page-token-file differs from the Secret or --token-file")
            }
            (AskError::Unreachable { message }, _) => {
                format!(
                    "{message} (is its page on? It needs --page-address and --page-token-file: docs/fleet.md)"
                )
            }
            _ => error.to_string(),
        }
    }
}

fn without_agent(nodes: Vec<String>, pods: &[AgentPod]) -> impl Iterator<Item = String> {
    let with: BTreeSet<&str> = pods.iter().map(|pod| pod.node.as_str()).collect();
    nodes.into_iter().filter(move |node| !with.contains(node.as_str()))
}

/// The reason why a pod cannot answer, if there is one.
fn unreachable(pod: &AgentPod) -> Option<String> {
    if pod.node.is_empty() {
        return Some("the pod is not scheduled to a node".to_owned());
    }
    match pod.phase.as_str() {
        "Running" | "" => None,
        phase => Some(format!("the pod is not running: its phase is {}", printable(phase))),
    }
}

/// The node of a pod, or the pod itself while it has none.
fn node_of(pod: &AgentPod) -> String {
    let name = if pod.node.is_empty() { &pod.name } else { &pod.node };
    printable(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: &str, phase: &str) -> AgentPod {
        AgentPod {
            name: "kube-proxy-x".to_owned(),
            node: node.to_owned(),
            addresses: Vec::new(),
            host_network: true,
            phase: phase.to_owned(),
            page_port: None,
        }
    }

    #[test]
    fn a_pod_that_does_not_run_is_not_asked() {
        assert_eq!(unreachable(&pod("ka", "Running")), None);
        assert!(unreachable(&pod("ka", "Pending\x1b")).unwrap().ends_with(r"its phase is Pending\u{1b}"));
        assert!(unreachable(&pod("", "Pending")).unwrap().contains("not scheduled"));
        let nodes = ["ka", "kb"].map(str::to_owned).to_vec();
        let bare: Vec<String> = without_agent(nodes, &[pod("ka", "Pending"), pod("", "Pending")]).collect();
        assert_eq!(bare, ["kb"]);
        assert_eq!((node_of(&pod("ka", "")), node_of(&pod("", ""))), ("ka".into(), "kube-proxy-x".into()));
    }
}
