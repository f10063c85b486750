//! Requests as they come in: gRPC messages cut out of the HTTP/2 body.
//!
//! A message that came in one piece, as nearly all do, is decoded where it lies. So a stream that waits holds no
//! buffer; tonic's decoder keeps 8 KiB for each.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Body;
use hyper::body::Incoming;
use prost::Message;
use tonic::Status;

/// The gRPC message prefix: a flag (0, not compressed) and a 32-bit length.
const PREFIX_LEN: usize = 5;

/// The requests of one stream.
#[derive(Debug)]
pub(super) struct Requests<M, B = Incoming> {
    body: B,
    limit: usize,
    /// What came last and has not been read.
    chunk: Bytes,
    /// The beginning of a message that did not come in one piece.
    begun: BytesMut,
    message: PhantomData<fn() -> M>,
}

impl<M, B> Requests<M, B>
where
    M: Message + Default,
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
{
    /// Reads messages of at most `limit` bytes.
    pub(super) fn new(body: B, limit: usize) -> Self {
        Self { body, limit, chunk: Bytes::new(), begun: BytesMut::new(), message: PhantomData }
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
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                // Trailers mean nothing here.
                Some(Ok(frame)) => self.chunk = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(Status::from_error(error.into())))),
                None if self.begun.is_empty() => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err(Status::internal("the stream ended within a message")))),
            }
        }
    }

    /// The next whole message of what has come, if there is one.
    fn cut(&mut self) -> Result<Option<Bytes>, Status> {
        if !self.begun.is_empty() {
            self.begun.extend_from_slice(&std::mem::take(&mut self.chunk));
            if self.first_message(&self.begun)?.is_none() {
                return Ok(None);
            }
            self.chunk = std::mem::take(&mut self.begun).freeze();
        }
        let Some(length) = self.first_message(&self.chunk)? else {
            self.begun.extend_from_slice(&std::mem::take(&mut self.chunk));
            return Ok(None);
        };
        self.chunk.advance(PREFIX_LEN);
        Ok(Some(self.chunk.split_to(length)))
    }

    /// The length of the message that `bytes` begin with, if all of it is there.
    fn first_message(&self, mut bytes: &[u8]) -> Result<Option<usize>, Status> {
        if bytes.len() < PREFIX_LEN {
            return Ok(None);
        }
        if bytes.get_u8() != 0 {
            return Err(Status::internal("a compressed message, though no compression was agreed on"));
        }
        let length = bytes.get_u32() as usize;
        if length > self.limit {
            let limit = self.limit;
            return Err(Status::out_of_range(format!(
                "a request of {length} bytes; at most {limit} are accepted"
            )));
        }
        Ok((bytes.len() >= length).then_some(length))
    }
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

    /// Gives its pieces one by one.
    struct Pieces(VecDeque<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    fn read(pieces: impl IntoIterator<Item = Bytes>) -> (Vec<String>, Option<Status>) {
        let body = Pieces(pieces.into_iter().collect());
        let mut requests = Requests::<SotwRequest, _>::new(body, 100);
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
}
