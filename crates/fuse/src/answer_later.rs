//! Requests that any thread may answer later. The thread that took one goes on with others.

use std::sync::Arc;

use crate::operations::{Begun, Counters};
use crate::request::{Answer, Request};

/// A request as its transport stores it until the answer.
pub trait Carrier: Send {
    fn request(&mut self) -> Request<'_>;

    /// Sends the reply: so many bytes of the request's payload buffer, or an error.
    fn send(self: Box<Self>, answer: Answer);
}

/// A request that is answered later. Dropping it answers EIO, so that its caller does not wait for ever.
pub struct Parked {
    carrier: Option<Box<dyn Carrier>>,
    counted: Option<(Begun, Arc<Counters>)>,
}

impl Parked {
    pub fn new(carrier: impl Carrier + 'static) -> Parked {
        Parked { carrier: Some(Box::new(carrier)), counted: None }
    }

    /// Its answer ends the time that it took.
    pub fn counted(self, begun: Begun, by: Arc<Counters>) -> Parked {
        let mut parked = self;
        parked.counted = Some((begun, by));
        parked
    }

    pub fn request(&mut self) -> Request<'_> {
        self.carrier.as_mut().expect("taken by `reply` only, which ends it").request()
    }

    pub fn reply(mut self, answer: Answer) {
        self.send(answer);
    }

    fn send(&mut self, answer: Answer) {
        if let Some(carrier) = self.carrier.take() {
            if let Some((begun, by)) = &self.counted {
                by.end(*begun, &answer);
            }
            carrier.send(answer);
        }
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.send(Err(rustix::io::Errno::IO));
    }
}

#[cfg(test)]
pub mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::abi::InHeader;

    /// A request that sends its answer to a channel.
    pub struct Answering {
        pub data: Vec<u8>,
        pub sender: mpsc::Sender<Answer>,
    }

    impl Carrier for Answering {
        fn request(&mut self) -> Request<'_> {
            let len = self.data.len();
            Request { head: InHeader::default(), args: &[], data: &mut self.data, len }
        }

        fn send(self: Box<Self>, answer: Answer) {
            self.sender.send(answer).expect("somebody listens");
        }
    }

    #[test]
    fn a_request_is_answered_once_and_in_any_case() {
        let (sender, answers) = mpsc::channel();
        let park = || Parked::new(Answering { data: vec![7], sender: sender.clone() });
        assert_eq!(park().request().data, [7]);
        park().reply(Ok(1));
        drop(park());
        let eio = Err(rustix::io::Errno::IO);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [eio, Ok(1), eio]);
    }
}
