//! Lists: complete or in pages, of the current or a recent version. Watches, including those that begin with a list, are
//! in `watch`.

use std::sync::Arc;

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;

use super::body::{AnswerBody, Ended, Pieces, in_pieces};
use super::object::{Key, Object, Version};
use super::query::Request;
use super::server::Shared;
use super::status::Status;
use super::store::Selection;
use super::wire::Wire;
use super::{PIECE, lock};

/// Begins an answer; a separate task continues it.
pub(super) fn list(
    shared: &Shared,
    request: &Request,
    selection: &Selection,
    wire: Wire,
) -> Result<AnswerBody, Status> {
    let Found { objects, at, next } = find(shared, request, selection)?;
    let objects: Vec<&Object> = objects.iter().map(AsRef::as_ref).collect();
    let list = wire.list(selection.kind, at, next.as_deref(), &objects);
    let (mut pieces, body) = in_pieces(request, &shared.faults);
    // A client may disconnect before the end of the list.
    tokio::spawn(async move { send(list, &mut pieces).await });
    Ok(body)
}

struct Found {
    objects: Vec<Arc<Object>>,
    at: Version,
    /// Where the next page begins.
    next: Option<String>,
}

fn find(shared: &Shared, request: &Request, selection: &Selection) -> Result<Found, Status> {
    let question = Question::read(request)?;
    let store = lock(&shared.store);
    let at = question.at.unwrap_or(store.version());
    if at > store.version() || question.not_before > store.version() {
        return Err(Status::too_large_version(at.max(question.not_before), store.version()));
    }
    let page = store.page(selection, at, question.after.as_ref(), question.limit);
    let page = page.map_err(|forgotten| match question.after {
        Some(_) => Status::continue_expired(),
        None => Status::expired(at, forgotten.oldest),
    })?;
    let last = page.objects.last().filter(|_| page.more);
    let next = last.map(|last| write_token(at, &last.key));
    Ok(Found { objects: page.objects, at, next })
}

async fn send(mut body: Bytes, pieces: &mut Pieces) -> Result<(), Ended> {
    while !body.is_empty() {
        pieces.send(body.split_to(PIECE.min(body.len()))).await?;
    }
    Ok(())
}

/// The parameters of a list.
struct Question {
    /// None: the current version.
    at: Option<Version>,
    not_before: Version,
    after: Option<Key>,
    limit: usize,
}

impl Question {
    fn read(request: &Request) -> Result<Question, Status> {
        let number = |name| read_number(request, name);
        let (version, rule) =
            (request.parameter("resourceVersion"), request.parameter("resourceVersionMatch"));
        if request.query.contains_key("sendInitialEvents") {
            return Err(Status::forbidden_option(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for list",
            ));
        }
        if !rule.is_empty() && version.is_empty() {
            let message = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            return Err(Status::forbidden_option("resourceVersionMatch", message));
        }
        let limit = match number("limit")? {
            // A list of "any version" comes from the cache of the server, which has no pages.
            _ if version == "0" => usize::MAX,
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        let token = request.parameter("continue");
        if !token.is_empty() {
            if !version.is_empty() && version != "0" {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let (at, after) = read_token(token)?;
            return Ok(Question { at: Some(at), not_before: 0, after: Some(after), limit });
        }
        let version = number("resourceVersion")?;
        match rule {
            "Exact" => Ok(Question { at: Some(version), not_before: 0, after: None, limit }),
            "" | "NotOlderThan" => Ok(Question { at: None, not_before: version, after: None, limit }),
            _ => {
                Err(Status::forbidden_option("resourceVersionMatch", "supported values: Exact, NotOlderThan"))
            }
        }
    }
}

/// Zero if the parameter is missing.
pub(super) fn read_number(request: &Request, name: &'static str) -> Result<u64, Status> {
    match request.parameter(name) {
        "" => Ok(0),
        text => text.parse().map_err(|_| Status::bad_request(format!("invalid {name}: {text:?}"))),
    }
}

fn write_token(at: Version, last: &Key) -> String {
    BASE64URL_NOPAD.encode(format!("{at}/{}/{}", last.namespace, last.name).as_bytes())
}

fn read_token(token: &str) -> Result<(Version, Key), Status> {
    let decoded =
        BASE64URL_NOPAD.decode(token.as_bytes()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let mut parts = decoded.as_deref().unwrap_or_default().splitn(3, '/');
    match (parts.next().and_then(|at| at.parse().ok()), parts.next(), parts.next()) {
        (Some(at), Some(namespace), Some(name)) => Ok((at, Key::new(namespace, name))),
        _ => Err(Status::bad_request("continue key is not valid")),
    }
}
