//! Whatever a peer sends: the decoder does not panic, keeps to its limits, and says the same whole, byte by
//! byte and in pieces of any length.
//!
//! The first byte chooses the limits and the pieces, the others are what comes off the wire. What is decoded
//! is compared by a hash, so that nothing is allocated for it: this check is to be run a billion times.

use quorlock::{
    ProtocolError,
    internal::resp::decode::{Decoder, Kind, Limits, Reply},
};

use super::bytes::pieces;

pub fn check(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else {
        return;
    };
    let limits = if choice & 1 == 0 { Limits::default() } else { SMALL };
    let decoder = &mut Decoder::new(limits);
    let buffered = usize::from(choice & 1 == 1) * SMALL.buffered;
    if buffered > 0 && bytes.len() > buffered {
        // More than may be buffered at once: how much that is at a time depends on the pieces.
        let outcome = decode(decoder, bytes.chunks(1));
        assert!(outcome.consumed <= bytes.len());
        return;
    }
    let whole = decode(decoder, [bytes]);
    decoder.reset();
    let single = decode(decoder, bytes.chunks(1));
    assert_eq!(single, whole, "byte by byte");
    decoder.reset();
    let longest = 2 + usize::from(choice >> 4);
    let seed = u64::from(choice) << 32 | u64::try_from(bytes.len()).unwrap_or(0);
    assert_eq!(decode(decoder, pieces(bytes, longest, seed)), whole, "in pieces");
}

/// What a stream came to.
#[derive(Debug, Eq, PartialEq)]
pub struct Outcome {
    /// How many replies, and a hash of all that they say.
    pub replies: usize,
    pub hash: u64,
    /// Whether the stream ended within a reply, or how it broke.
    pub end: Result<bool, ProtocolError>,
    /// At least so many bytes the replies took on the wire.
    pub consumed: usize,
}

pub fn decode<'a>(decoder: &mut Decoder, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut outcome = Outcome { replies: 0, hash: 0, end: Ok(false), consumed: 0 };
    for piece in pieces {
        let mut result = decoder.feed(piece);
        while result.is_ok() {
            match decoder.decode() {
                Ok(Some(reply)) => outcome.add(reply),
                Ok(None) => break,
                Err(error) => result = Err(error),
            }
        }
        if let Err(error) = result {
            assert_eq!(decoder.feed(b"+OK\r\n"), Err(error), "an error is final");
            assert!(decoder.decode().is_err_and(|again| again == error), "an error is final");
            outcome.end = Err(error);
            return outcome;
        }
    }
    outcome.end = Ok(decoder.is_mid_reply());
    outcome
}

impl Outcome {
    fn add(&mut self, reply: Reply<'_>) {
        self.replies += 1;
        self.walk(reply, 0);
    }

    fn walk(&mut self, reply: Reply<'_>, depth: usize) {
        assert!(depth <= Limits::default().depth, "deeper than allowed");
        self.consumed += 3;
        match reply.kind() {
            Kind::Array(len) => self.children(1, len, reply, depth),
            Kind::Map(pairs) => self.children(2, 2 * pairs, reply, depth),
            Kind::Push(len) => self.children(3, len, reply, depth),
            Kind::Set(len) => self.children(4, len, reply, depth),
            Kind::BigNumber(digits) => self.text(5, digits),
            Kind::Boolean(boolean) => self.mix(6, u64::from(boolean)),
            Kind::Bulk(bytes) => self.text(7, bytes),
            Kind::BulkError(text) => self.text(8, text),
            Kind::Double(double) => self.mix(9, double.to_bits()),
            Kind::Error(text) => self.text(10, text),
            Kind::Integer(integer) => self.mix(11, u64::from_ne_bytes(integer.to_ne_bytes())),
            Kind::Null => self.mix(12, 0),
            Kind::Simple(text) => self.text(13, text),
            Kind::Verbatim(text) => self.text(14, text),
        }
    }

    fn children(&mut self, sign: u64, count: usize, reply: Reply<'_>, depth: usize) {
        self.mix(sign, u64::try_from(count).unwrap_or(u64::MAX));
        let mut found = 0;
        for child in reply.children() {
            self.walk(child, depth + 1);
            found += 1;
        }
        assert_eq!(found, count, "an aggregate has as many elements as it says");
    }

    fn text(&mut self, sign: u64, text: &[u8]) {
        self.consumed += text.len();
        self.mix(sign, u64::try_from(text.len()).unwrap_or(u64::MAX));
        for byte in text {
            self.mix(sign, u64::from(*byte));
        }
    }

    /// As FxHash does.
    fn mix(&mut self, sign: u64, word: u64) {
        self.hash =
            (self.hash.rotate_left(5) ^ word ^ sign << 56).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

/// Small enough for short inputs to reach.
const SMALL: Limits = Limits { depth: 3, elements: 8, bulk: 16, line: 12, buffered: 256 };
