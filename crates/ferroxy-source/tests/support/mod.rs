//! An API server in a few lines: gives the answers that a test has set for a resource, in order, and otherwise behaves
//! like an empty cluster. Plain HTTP, one thread for each connection.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// More than anything here takes, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(600);

pub const END_OF_LIST: &str = r#","annotations":{"k8s.io/initial-events-end":"true"}"#;

pub fn service(name: &str, version: u32) -> String {
    format!(r#"{{"metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{version}"}}}}"#)
}

pub fn added(name: &str, version: u32) -> String {
    format!(r#"{{"type":"ADDED","object":{}}}"#, service(name, version))
}

pub fn bookmark(version: u32, more: &str) -> String {
    format!(r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{version}"{more}}}}}}}"#)
}

pub fn expired() -> String {
    r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#
        .to_owned()
}

pub fn page(names: &[&str], version: u32, token: &str) -> Answer {
    let items: Vec<String> = names.iter().map(|name| service(name, 1)).collect();
    let items = items.join(",");
    let body = format!(
        r#"{{"kind":"ServiceList","metadata":{{"resourceVersion":"{version}","continue":"{token}"}},"items":[{items}]}}"#
    );
    Answer::Whole(200, body)
}

pub enum Answer {
    Whole(u16, String),
    /// These lines, and then those that the test sends with [`Server::say`].
    Stream(Vec<String>),
    /// Nothing, not even a head.
    Silence,
}

pub enum Say {
    Line(String),
    /// A stream that ends in good order.
    End,
    /// A connection that breaks.
    Cut,
}

#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub target: String,
    pub token: String,
    pub body: String,
}

#[derive(Clone)]
pub struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// By the last part of the path: `services`.
    answers: HashMap<String, VecDeque<Answer>>,
    streams: HashMap<String, Sender<Say>>,
    asked: Vec<Asked>,
    /// If set, requests with another token are answered 401.
    token: Option<String>,
    frozen: bool,
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server { address: listener.local_addr().unwrap(), state: Arc::default() };
        let accepting = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (server, stream) = (accepting.clone(), stream.unwrap());
                thread::spawn(move || server.serve(stream));
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn answer(&self, resource: &str, answers: impl IntoIterator<Item = Answer>) {
        self.state.lock().unwrap().answers.entry(resource.to_owned()).or_default().extend(answers);
    }

    pub fn require_token(&self, token: &str) {
        self.state.lock().unwrap().token = Some(token.to_owned());
    }

    /// From now on nothing is answered, and nothing is closed either.
    pub fn freeze(&self, frozen: bool) {
        self.state.lock().unwrap().frozen = frozen;
    }

    /// Sends to the client that watches this resource now. Waits for a watch.
    pub fn say(&self, resource: &str, say: Say) {
        let stream = self.wait_for(&format!("a watch of {resource}"), |state| state.streams.remove(resource));
        let goes_on = matches!(say, Say::Line(_));
        stream.send(say).unwrap();
        if goes_on {
            self.state.lock().unwrap().streams.insert(resource.to_owned(), stream);
        }
    }

    /// The requests about this resource so far.
    pub fn asked(&self, resource: &str) -> Vec<Asked> {
        let state = self.state.lock().unwrap();
        state.asked.iter().filter(|it| resource_of(&it.target) == resource).cloned().collect()
    }

    /// Waits until `count` requests about a resource have come, and returns the last of them.
    pub fn wait_for_request(&self, resource: &str, count: usize) -> Asked {
        self.wait_for(&format!("request {count} about {resource}"), |state| {
            let mut about = state.asked.iter().filter(|it| resource_of(&it.target) == resource);
            about.nth(count - 1).cloned()
        })
    }

    fn wait_for<T>(&self, what: &str, mut find: impl FnMut(&mut State) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = find(&mut self.state.lock().unwrap()) {
                return found;
            }
            let asked: Vec<String> =
                self.state.lock().unwrap().asked.iter().map(|it| it.target.clone()).collect();
            assert!(Instant::now() < deadline, "timed out waiting for {what}; asked: {asked:#?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// One connection, request after request. Errors mean that the client has left.
    fn serve(self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(asked) = read_request(&mut reader) {
            if self.respond(asked, &stream).is_none() {
                return;
            }
        }
    }

    fn respond(&self, asked: Asked, stream: &TcpStream) -> Option<()> {
        let resource = resource_of(&asked.target).to_owned();
        let mut state = self.state.lock().unwrap();
        let refused = state.token.as_ref().is_some_and(|token| *token != asked.token);
        let frozen = state.frozen;
        let answer = match state.answers.get_mut(&resource).filter(|_| !refused && !frozen) {
            Some(answers) => answers.pop_front(),
            None => None,
        };
        let target = asked.target.clone();
        state.asked.push(asked);
        let answer = match answer {
            _ if frozen => Answer::Silence,
            _ if refused => Answer::Whole(401, r#"{"message":"Unauthorized"}"#.to_owned()),
            Some(answer) => answer,
            None if target.contains("sendInitialEvents") => Answer::Stream(vec![bookmark(1, END_OF_LIST)]),
            None if target.contains("watch=1") => Answer::Stream(Vec::new()),
            None if target.contains("limit=") => page(&[], 1, ""),
            None => Answer::Whole(200, "{}".to_owned()),
        };
        match answer {
            Answer::Whole(status, body) => {
                drop(state);
                let length = body.len();
                write(stream, &format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n\r\n{body}"))
            }
            Answer::Silence => {
                drop(state);
                thread::sleep(PATIENCE);
                None
            }
            Answer::Stream(lines) => {
                let (sender, says) = mpsc::channel();
                state.streams.insert(resource, sender);
                drop(state);
                stream_lines(stream, lines, &says)
            }
        }
    }
}

fn resource_of(target: &str) -> &str {
    target.split('?').next().unwrap_or_default().rsplit('/').next().unwrap_or_default()
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let header = |name: &str| {
        let found = lines.iter().skip(1).filter_map(|line| line.split_once(": "));
        found.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let mut body = vec![0; header("content-length").map_or(0, |it| it.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    let mut first = lines.first()?.split(' ');
    Some(Asked {
        method: first.next()?.to_owned(),
        target: first.next()?.to_owned(),
        token: header("authorization").unwrap_or_default().replace("Bearer ", ""),
        body: String::from_utf8(body).unwrap(),
    })
}

fn stream_lines(stream: &TcpStream, lines: Vec<String>, says: &Receiver<Say>) -> Option<()> {
    write(stream, "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    for line in lines {
        write_chunk(stream, &format!("{line}\n"))?;
    }
    loop {
        match says.recv().ok()? {
            Say::Line(line) => write_chunk(stream, &format!("{line}\n"))?,
            Say::End => return write(stream, "0\r\n\r\n"),
            Say::Cut => {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return None;
            }
        }
    }
}

fn write_chunk(stream: &TcpStream, text: &str) -> Option<()> {
    write(stream, &format!("{:x}\r\n{text}\r\n", text.len()))
}

fn write(mut stream: &TcpStream, text: &str) -> Option<()> {
    stream.write_all(text.as_bytes()).ok()
}
