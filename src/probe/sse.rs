//! Server-sent events, incrementally and bounded.
//!
//! Pure: no I/O. Follows the event stream format of the HTML standard (§9.2.5, §9.2.6): lines end in CR LF, LF or
//! CR, wherever the bytes are split; a leading byte order mark is dropped; an event is dispatched by an empty line, and
//! what is incomplete at the end of the stream is dropped. Fields that a completion stream does not use (`id`,
//! `retry`) are read over. It knows nothing of completions. Called by `openai`, and by a fuzz entry.

/// Longest event accepted, in bytes of its data and type together. A token's chunk has a few hundred.
pub const MAX_EVENT_BYTES: usize = 256 * 1024;

/// What a stream said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An event, complete.
    Event {
        /// Its type; `message` unless the stream names another.
        kind: String,
        /// Its data lines, joined by line feeds. Bytes that are no UTF-8 are replaced.
        data: String,
    },
    /// A comment line: the peer is alive, and has nothing to say.
    Comment,
}

/// Why a stream cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An event without an end would take all memory.
    #[error("an event of the stream has more than {MAX_EVENT_BYTES} bytes")]
    TooLong,
}

/// The decoder's state between two pieces of a stream.
#[derive(Debug, Default)]
pub struct SseDecoder {
    line: Vec<u8>,
    data: Vec<u8>,
    kind: Vec<u8>,
    /// A data line was seen, if only an empty one.
    has_data: bool,
    /// The last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    begun: bool,
}

impl SseDecoder {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and appends what they complete to `items`. After an error the stream is lost.
    pub fn feed(&mut self, bytes: &[u8], items: &mut Vec<Item>) -> Result<(), SseError> {
        for &byte in bytes {
            let second_half = std::mem::take(&mut self.after_cr) && byte == b'\n';
            match byte {
                b'\n' if second_half => {}
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    self.end_line(items);
                }
                _ => {
                    if self.line.len() + self.data.len() + self.kind.len() >= MAX_EVENT_BYTES {
                        return Err(SseError::TooLong);
                    }
                    self.line.push(byte);
                }
            }
        }
        Ok(())
    }

    fn end_line(&mut self, items: &mut Vec<Item>) {
        let line = std::mem::take(&mut self.line);
        let line = match line.strip_prefix(b"\xEF\xBB\xBF") {
            Some(rest) if !self.begun => rest,
            _ => &line,
        };
        self.begun = true;
        if line.is_empty() {
            self.dispatch(items);
            return;
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(0) => {
                items.push(Item::Comment);
                return;
            }
            Some(at) => line.split_at(at),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => self.kind = value.to_vec(),
            _ => {}
        }
    }

    fn dispatch(&mut self, items: &mut Vec<Item>) {
        let kind = std::mem::take(&mut self.kind);
        let data = std::mem::take(&mut self.data);
        if std::mem::take(&mut self.has_data) {
            let kind = if kind.is_empty() { "message".to_owned() } else { text(&kind) };
            items.push(Item::Event { kind, data: text(&data) });
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(pieces: &[&[u8]]) -> Vec<Item> {
        let (mut decoder, mut items) = (SseDecoder::new(), Vec::new());
        for piece in pieces {
            decoder.feed(piece, &mut items).unwrap();
        }
        items
    }

    fn message(data: &str) -> Item {
        Item::Event { kind: "message".into(), data: data.into() }
    }

    #[test]
    fn the_examples_of_the_standard_decode_as_it_says() {
        assert_eq!(decode(&[b"data: YHOO\ndata: +2\ndata: 10\n\n"]), [message("YHOO\n+2\n10")]);
        let second =
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n";
        assert_eq!(decode(&[second]), [Item::Comment, message("first event"), message("second event")]);
        assert_eq!(decode(&[b"data\n\ndata\ndata\n\ndata:"]), [message(""), message("\n")]);
        assert_eq!(decode(&[b"data:test\n\ndata: test\n\n"]), [message("test"), message("test")]);
    }

    #[test]
    fn every_end_of_line_is_one() {
        assert_eq!(decode(&[b"data: a\r\n\r\ndata: b\r\rdata: c\n\n"]), ["a", "b", "c"].map(message));
        assert_eq!(decode(&[b"data: a\r", b"\n\r", b"\ndata: b\n\n"]), ["a", "b"].map(message));
    }

    #[test]
    fn a_stream_is_the_same_byte_by_byte_as_at_once() {
        // Case 137: CR LF, CR alone, no space after the colon, and characters of several bytes.
        let corpus = [
            ("data: {\"text\":\" a\"}\n\ndata: [DONE]\n\n", vec!["{\"text\":\" a\"}", "[DONE]"]),
            ("data: a\r\n\r\ndata: b\r\n\r\n", vec!["a", "b"]),
            ("data: a\r\rdata: b\r\r", vec!["a", "b"]),
            ("data:a\n\ndata:b\r\n\r\n", vec!["a", "b"]),
            ("data: \u{e4}\u{20ac}\u{1f600}\n\n", vec!["\u{e4}\u{20ac}\u{1f600}"]),
            ("data: a\r\n\n\rdata: b\n\r\n", vec!["a", "b"]),
        ];
        for (text, expected) in corpus {
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            let expected: Vec<Item> = expected.into_iter().map(message).collect();
            assert_eq!(decode(&bytes), expected, "{text:?} byte by byte");
            assert_eq!(decode(&[text.as_bytes()]), expected, "{text:?} at once");
        }
    }

    #[test]
    fn a_byte_order_mark_is_dropped_at_the_beginning_only() {
        assert_eq!(decode(&[b"\xEF\xBB", b"\xBFdata: a\n\n\xEF\xBB\xBFdata: b\n\n"]), [message("a")]);
    }

    #[test]
    fn an_event_type_belongs_to_its_event_alone() {
        let items = decode(&[b"event: error\ndata: x\n\ndata: y\n\nevent: lost\n\ndata: z\n\n"]);
        let error = Item::Event { kind: "error".into(), data: "x".into() };
        assert_eq!(items, [error, message("y"), message("z")]);
    }

    #[test]
    fn an_event_without_an_end_is_an_error_not_a_leak() {
        let mut decoder = SseDecoder::new();
        let mut items = Vec::new();
        let line = [b'x'; 1024];
        let fed = (0..10_000).find_map(|_| decoder.feed(&line, &mut items).err());
        assert_eq!(fed, Some(SseError::TooLong));
        assert!(decoder.line.len() <= MAX_EVENT_BYTES);
        let mut decoder = SseDecoder::new();
        let fed = (0..1_000_000).find_map(|_| decoder.feed(b"data: y\n", &mut items).err());
        assert_eq!(fed, Some(SseError::TooLong), "many short lines are a long event too");
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_gives_the_same_items(
            text in proptest::collection::vec(prop_oneof![
                Just("data: x".to_owned()), Just("data".to_owned()), Just(": c".to_owned()), Just("event: e".to_owned()),
                Just("\r\n".to_owned()), Just("\n".to_owned()), Just("\r".to_owned()), "[a-z:\u{feff}é ]{0,4}",
            ], 0..40),
            cuts in proptest::collection::vec(0usize..200, 0..8),
        ) {
            let bytes = text.concat().into_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(decode(&pieces), decode(&[&bytes]));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let mut items = Vec::new();
            let _ = SseDecoder::new().feed(&bytes, &mut items);
        }
    }
}
