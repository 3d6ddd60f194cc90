//! Passes questions to the agent, a few at a time, with a timeout.

use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::Refused;
use crate::agent::questions::Question;
use crate::agent::{Input, Sender};

/// If the agent is busy for longer, the client has to repeat the request.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Questions at a time. So the agent answers at most this many between two rounds of its work.
const AT_A_TIME: usize = 2;

#[derive(Debug)]
pub struct Asker {
    inputs: Sender,
    turns: Semaphore,
    longest_wait: Duration,
}

impl Asker {
    pub fn new(inputs: Sender) -> Asker {
        Asker { inputs, turns: Semaphore::new(AT_A_TIME), longest_wait: LONGEST_WAIT }
    }

    pub async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, Refused> {
        let asked = async {
            let _turn = self.turns.acquire().await.ok()?;
            let (reply, answer) = oneshot::channel();
            self.inputs.send_now(Input::Ask(question(reply))).ok()?;
            answer.await.ok()
        };
        let answer = timeout(self.longest_wait, asked).await.ok().flatten();
        answer.ok_or_else(|| {
            let wait = self.longest_wait;
            let words = format!("the agent is busy and did not answer within {wait:?}; ask again");
            Refused::new(StatusCode::SERVICE_UNAVAILABLE, words)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::inbox;
    use crate::agent::questions::Part;

    fn ask(asker: &Asker) -> Result<usize, u16> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let question = |reply| Question::Services { after: None, limit: 1, reply };
        let answer = runtime.block_on(asker.ask(question));
        answer.map(|part| part.items.len()).map_err(|refused| refused.code.as_u16())
    }

    #[test]
    fn an_agent_that_answers_is_waited_for_and_another_is_not() {
        let (inputs, receiver) = inbox();
        let mut asker = Asker::new(inputs);
        let answering = std::thread::spawn(move || {
            match receiver.recv_timeout(Duration::from_secs(600)) {
                Ok(Input::Ask(Question::Services { reply, .. })) => {
                    reply.send(Part { items: Vec::new(), next: None }).unwrap();
                }
                other => panic!("{other:?}"),
            }
            receiver
        });
        asker.longest_wait = Duration::from_secs(600);
        assert_eq!(ask(&asker), Ok(0));
        let receiver = answering.join().unwrap();
        asker.longest_wait = Duration::from_millis(1);
        assert_eq!(ask(&asker), Err(503), "it is busy");
        asker.longest_wait = Duration::from_secs(600);
        drop(receiver);
        assert_eq!(ask(&asker), Err(503), "it has ended");
    }
}
