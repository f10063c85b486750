//! Requests as they come in: gRPC messages cut out of the HTTP/2 body.
//!
//! A message that came in one piece, as nearly all do, is decoded where it lies. So a stream that waits holds no
//! buffer; tonic's decoder keeps 8 KiB for each. One that comes in pieces is collected: within a time, and if it is
//! large only while there is [`Room`] for it, which all streams share.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Body;
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tonic::Status;

/// The gRPC message prefix: a flag (0, not compressed) and a 32-bit length.
const PREFIX_LEN: usize = 5;

/// Largest request accepted, in bytes. An Envoy with tens of thousands of resources lists them all on reconnect.
pub(super) const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;

/// What all large messages together may take while they come in, in bytes.
const ROOM: usize = 4 * MAX_REQUEST_BYTES;

/// The unit in which room is shared out.
const UNIT: usize = 1024;

/// Messages up to so many bytes need no room: a connection's own limits bound them.
const SMALL: usize = 64 * 1024;

/// From a message's first byte (or from when there was room for it) to its last.
const COMPLETE_WITHIN: Duration = Duration::from_secs(30);

/// Room for large messages that are coming in. Clones share it; who finds none waits, in turn.
#[derive(Debug, Clone)]
pub(super) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM / UNIT)))
    }
}

/// The requests of one stream.
#[derive(Debug)]
pub(super) struct Requests<M, B = Incoming> {
    body: B,
    limit: usize,
    room: Room,
    /// What came last and has not been read.
    chunk: Bytes,
    /// The beginning of a message that did not come in one piece.
    begun: Option<Box<Begun>>,
    message: PhantomData<fn() -> M>,
}

/// A message of which the rest is to come.
struct Begun {
    bytes: BytesMut,
    place: Place,
    deadline: Pin<Box<Sleep>>,
}

/// Whether there is room for the rest.
enum Place {
    /// How much is needed is not known yet, or it is small.
    Free,
    Waits(Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send + Sync>>),
    Taken {
        _room: Option<OwnedSemaphorePermit>,
    },
}

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of a message", self.bytes.len())
    }
}

impl Begun {
    fn new() -> Self {
        let deadline = Box::pin(tokio::time::sleep(COMPLETE_WITHIN));
        Self { bytes: BytesMut::new(), place: Place::Free, deadline }
    }

    /// Ready when the next piece may be read.
    fn poll(&mut self, room: &Room, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if let (Place::Free, Some(length)) = (&self.place, announced(&self.bytes))
            && length > SMALL
        {
            let units = u32::try_from(length.div_ceil(UNIT).min(ROOM / UNIT)).unwrap_or(u32::MAX);
            let room = room.0.clone();
            self.place = Place::Waits(Box::pin(async move { room.acquire_many_owned(units).await.ok() }));
        }
        if let Place::Waits(place) = &mut self.place {
            let taken = ready!(place.as_mut().poll(cx));
            self.place = Place::Taken { _room: taken };
            self.deadline.as_mut().reset(tokio::time::Instant::now() + COMPLETE_WITHIN);
            let length = announced(&self.bytes).unwrap_or(0);
            self.bytes.reserve((PREFIX_LEN + length).saturating_sub(self.bytes.len()));
        }
        if self.deadline.as_mut().poll(cx).is_ready() {
            let within = COMPLETE_WITHIN.as_secs();
            return Poll::Ready(Err(Status::deadline_exceeded(format!(
                "a request was begun and not completed within {within} s"
            ))));
        }
        Poll::Ready(Ok(()))
    }
}

impl<M, B> Requests<M, B>
where
    M: Message + Default,
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
{
    /// Reads messages of at most `limit` bytes.
    pub(super) const fn new(body: B, limit: usize, room: Room) -> Self {
        Self { body, limit, room, chunk: Bytes::new(), begun: None, message: PhantomData }
    }

    /// The next request; `None` when the client has said all.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<M, Status>>> {
        loop {
            match self.cut() {
                Ok(None) => {}
                Ok(Some(message)) => {
                    let decoded = M::decode(message);
                    return Poll::Ready(Some(decoded.map_err(|e| Status::internal(e.to_string()))));
                }
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            if let Some(begun) = &mut self.begun
                && let Err(status) = ready!(begun.poll(&self.room, cx))
            {
                return Poll::Ready(Some(Err(status)));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                // Trailers mean nothing here.
                Some(Ok(frame)) => self.chunk = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(Status::from_error(error.into())))),
                None if self.begun.is_none() => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err(Status::internal("the stream ended within a message")))),
            }
        }
    }

    /// The next whole message of what has come, if there is one.
    fn cut(&mut self) -> Result<Option<Bytes>, Status> {
        if let Some(begun) = &mut self.begun {
            begun.bytes.extend_from_slice(&std::mem::take(&mut self.chunk));
            if first_message(&begun.bytes, self.limit)?.is_none() {
                return Ok(None);
            }
            self.chunk = std::mem::take(&mut begun.bytes).freeze();
            self.begun = None;
        }
        let Some(length) = first_message(&self.chunk, self.limit)? else {
            if !self.chunk.is_empty() {
                let begun = self.begun.get_or_insert_with(|| Box::new(Begun::new()));
                begun.bytes.extend_from_slice(&std::mem::take(&mut self.chunk));
            }
            return Ok(None);
        };
        self.chunk.advance(PREFIX_LEN);
        Ok(Some(self.chunk.split_to(length)))
    }
}

/// The length of the message that `bytes` begin with, if it has been said.
fn announced(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(1..PREFIX_LEN)?;
    Some(length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
}

/// The same, if all of the message is there.
fn first_message(bytes: &[u8], limit: usize) -> Result<Option<usize>, Status> {
    let Some(length) = announced(bytes) else { return Ok(None) };
    if bytes.first() != Some(&0) {
        return Err(Status::internal("a compressed message, though no compression was agreed on"));
    }
    if length > limit {
        return Err(Status::out_of_range(format!(
            "a request of {length} bytes; at most {limit} are accepted"
        )));
    }
    Ok((bytes.len() - PREFIX_LEN >= length).then_some(length))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use bytes::BufMut as _;
    use http_body::Frame;
    use proptest::prelude::*;

    use super::*;
    use crate::xds::wire::SotwRequest;

    /// Gives its pieces one by one; then it ends, or more is to come.
    struct Pieces {
        pieces: VecDeque<Bytes>,
        ends: bool,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.pieces.pop_front() {
                None if !self.ends => Poll::Pending,
                piece => Poll::Ready(piece.map(|piece| Ok(Frame::data(piece)))),
            }
        }
    }

    fn read(pieces: impl IntoIterator<Item = Bytes>) -> (Vec<String>, Option<Status>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let body = Pieces { pieces: pieces.into_iter().collect(), ends: true };
        let mut requests = Requests::<SotwRequest, _>::new(body, 100, Room::default());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut urls = Vec::new();
        loop {
            match requests.poll_next(&mut cx) {
                Poll::Ready(Some(Ok(request))) => urls.push(request.type_url),
                Poll::Ready(Some(Err(status))) => return (urls, Some(status)),
                Poll::Ready(None) => return (urls, None),
                Poll::Pending => unreachable!("the pieces are all there"),
            }
        }
    }

    fn framed(urls: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for url in urls {
            let request = SotwRequest { type_url: (*url).to_owned(), ..Default::default() };
            bytes.put_u8(0);
            bytes.put_u32(u32::try_from(request.encoded_len()).unwrap());
            request.encode(&mut bytes).unwrap();
        }
        bytes
    }

    proptest! {
        #[test]
        fn messages_are_the_same_however_they_are_cut(mut cuts in proptest::collection::vec(0usize..60, 0..6)) {
            let urls = ["one", "", "three", "a longer one"];
            let bytes = framed(&urls);
            cuts.extend([0, bytes.len()]);
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(bytes.len()));
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| Bytes::copy_from_slice(&bytes[cut[0]..cut[1]]));
            let (read, status) = read(pieces);
            prop_assert_eq!(read, urls);
            prop_assert!(status.is_none());
        }
    }

    #[test]
    fn what_is_no_request_ends_the_stream() {
        let end = |bytes: &[u8]| read([Bytes::copy_from_slice(bytes)]).1.unwrap().code();
        assert_eq!(end(&[1, 0, 0, 0, 0]), tonic::Code::Internal, "compressed");
        assert_eq!(end(&[0, 0, 0, 0, 101]), tonic::Code::OutOfRange, "too long");
        assert_eq!(end(&[0, 0, 0, 0, 1, 0xff]), tonic::Code::Internal, "not protobuf");
        assert_eq!(end(&framed(&["one"])[..6]), tonic::Code::Internal, "cut off");
    }

    /// A stream that has brought so much of a message of 100 KiB, and may bring more.
    fn begun(share: usize, room: &Room) -> (Requests<SotwRequest, Pieces>, Bytes) {
        let message = framed(&["x".repeat(100 * UNIT).as_str()]);
        let (first, rest) = message.split_at(message.len() * share / 4);
        let pieces = [Bytes::copy_from_slice(first)].into();
        let body = Pieces { pieces, ends: false };
        (Requests::new(body, MAX_REQUEST_BYTES, room.clone()), Bytes::copy_from_slice(rest))
    }

    #[tokio::test(start_paused = true)]
    async fn large_requests_wait_until_there_is_room_for_them() {
        let room = Room(Arc::new(Semaphore::new(150)));
        let (mut first, rest_of_first) = begun(1, &room);
        let (mut second, rest_of_second) = begun(1, &room);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(first.poll_next(&mut cx).is_pending());
        second.body.pieces.push_back(rest_of_second);
        for _ in 0..3 {
            assert!(second.poll_next(&mut cx).is_pending());
            assert_eq!(second.body.pieces.len(), 1, "it is not read on");
        }
        // However long that takes: it is not its own fault.
        tokio::time::advance(COMPLETE_WITHIN / 2).await;
        first.body.pieces.push_back(rest_of_first);
        for stream in [&mut first, &mut second] {
            assert!(matches!(stream.poll_next(&mut cx), Poll::Ready(Some(Ok(_)))));
            assert!(stream.begun.is_none());
        }
        assert_eq!(room.0.available_permits(), 150);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_never_completed_ends_the_stream_and_gives_its_room_back() {
        let room = Room::default();
        let (mut stream, _) = begun(3, &room);
        let end = std::future::poll_fn(|cx| stream.poll_next(cx)).await.unwrap().unwrap_err();
        assert_eq!(end.code(), tonic::Code::DeadlineExceeded);
        assert!(end.message().contains("30 s"), "{}", end.message());
        assert!(room.0.available_permits() < ROOM / UNIT);
        drop(stream);
        assert_eq!(room.0.available_permits(), ROOM / UNIT);
    }
}
