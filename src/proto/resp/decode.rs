//! Replies, as they come: in pieces of any size.
//!
//! Every byte is looked at once: decoding resumes where the bytes ended, in the middle of a line, a bulk or an
//! array. Nesting is kept on a stack of its own, and a reply is a flat list, so that neither decoding nor
//! walking nor dropping it recurses (hiredis #1336 to #1340). Nothing is allocated by a number from the wire,
//! and the buffers are kept from one reply to the next.
//!
//! Strict: whoever breaks the protocol once is not read any further.

use crate::error::ProtocolError;

/// What a reply may be at the most. A peer that exceeds it is refused before anything is allocated for it.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Arrays within arrays. `COMMAND INFO` takes 6; unmodified servers can be made to send 8000.
    pub depth: usize,
    /// Elements of one reply, all levels together.
    pub elements: usize,
    /// Bytes of one bulk. `INFO` takes a few thousand.
    pub bulk: usize,
    /// Bytes of one line. Servers keep theirs below 64 KiB.
    pub line: usize,
    /// Bytes fed and not yet decoded.
    pub buffered: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth: 32, elements: 1 << 16, bulk: 1 << 20, line: 1 << 16, buffered: 2 << 20 }
    }
}

#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    /// What was fed, from the start of the reply under way on, and perhaps some that is done with.
    buffer: Vec<u8>,
    /// Where the reply under way starts.
    start: usize,
    /// Up to where the buffer is decoded.
    done: usize,
    /// Up to where the line at `done` is known to have no end.
    scanned: usize,
    /// A bulk whose header is decoded and whose bytes are not all there.
    bulk: Option<Bulk>,
    /// The reply under way, in the order of the wire.
    items: Vec<Item>,
    /// The aggregates under way, the innermost last.
    open: Vec<Open>,
    /// Elements of the reply under way, those of attributes included.
    elements: usize,
    /// Whether the items are a reply that was given out, and the next one has not begun.
    complete: bool,
    broken: Option<ProtocolError>,
}

/// One value, and how many items it is with everything in it.
#[derive(Clone, Copy, Debug)]
struct Item {
    value: Value,
    span: usize,
}

/// Texts as places in the buffer, counted from the start of the reply.
#[derive(Clone, Copy, Debug)]
enum Value {
    Array(usize),
    BigNumber(Span),
    Boolean(bool),
    Bulk(Span),
    BulkError(Span),
    Double(f64),
    Error(Span),
    Integer(i64),
    Map(usize),
    Null,
    Push(usize),
    Set(usize),
    Simple(Span),
    Verbatim(Span),
}

#[derive(Clone, Copy, Debug)]
struct Span {
    from: usize,
    to: usize,
}

#[derive(Clone, Copy, Debug)]
struct Bulk {
    sign: u8,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// Where it stands in the items.
    item: usize,
    /// How many of its elements are still to come.
    left: usize,
    /// Whether it is left out of the reply: an attribute, or a push in the middle of a reply.
    aside: bool,
}

/// What stands next on the wire.
enum Next {
    Scalar(Value),
    Aggregate { value: Value, elements: usize, aside: bool },
}

impl Decoder {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            buffer: Vec::new(),
            start: 0,
            done: 0,
            scanned: 0,
            bulk: None,
            items: Vec::new(),
            open: Vec::new(),
            elements: 0,
            complete: true,
            broken: None,
        }
    }

    /// Takes bytes off the wire.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        self.whole()?;
        self.forget();
        if self.buffer.len() - self.start + bytes.len() > self.limits.buffered {
            return Err(self.broken(ProtocolError::ReplyTooLarge));
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole reply, if there is one.
    pub fn decode(&mut self) -> Result<Option<Reply<'_>>, ProtocolError> {
        self.whole()?;
        if self.complete {
            self.begin();
        }
        loop {
            match self.next() {
                Err(error) => return Err(self.broken(error)),
                Ok(None) => return Ok(None),
                Ok(Some(next)) => {
                    if let Err(error) = self.push(next) {
                        return Err(self.broken(error));
                    }
                }
            }
            self.complete = self.open.is_empty() && !self.items.is_empty();
            if self.complete {
                let bytes = &self.buffer[self.start..self.done];
                return Ok(Some(Reply { bytes, items: &self.items }));
            }
        }
    }

    /// Whether the bytes fed so far end within a reply: an end of the stream here is not a clean one.
    pub fn is_mid_reply(&self) -> bool {
        self.done < self.buffer.len() || !(self.complete || self.done == self.start)
    }

    /// Starts over, for a new connection.
    pub fn reset(&mut self) {
        self.buffer.clear();
        self.items.clear();
        self.open.clear();
        self.start = 0;
        self.done = 0;
        self.scanned = 0;
        self.elements = 0;
        self.bulk = None;
        self.complete = true;
        self.broken = None;
    }

    fn whole(&self) -> Result<(), ProtocolError> {
        self.broken.map_or(Ok(()), Err)
    }

    fn broken(&mut self, error: ProtocolError) -> ProtocolError {
        self.broken = Some(error);
        error
    }

    /// A new reply starts where the last one ended.
    fn begin(&mut self) {
        self.start = self.done;
        self.items.clear();
        self.elements = 0;
        self.complete = false;
    }

    /// Between two replies, drops the bytes that are done with: where that is all of them, or most of many.
    fn forget(&mut self) {
        let between = self.complete || (self.done == self.start && self.bulk.is_none());
        let rest = self.buffer.len() - self.done;
        if !between || (rest > 0 && self.done < FORGET_BYTES_MIN.max(rest)) {
            return;
        }
        self.buffer.drain(..self.done);
        self.scanned = self.scanned.saturating_sub(self.done);
        self.done = 0;
        self.begin();
    }

    /// Books a value, and closes what it completes.
    fn push(&mut self, next: Next) -> Result<(), ProtocolError> {
        self.elements += 1;
        if self.elements > self.limits.elements {
            return Err(ProtocolError::ReplyTooLarge);
        }
        let item = self.items.len();
        match next {
            Next::Scalar(value) => {
                self.items.push(Item { value, span: 1 });
                self.count_element();
            }
            Next::Aggregate { value, elements, aside } => {
                if self.open.len() >= self.limits.depth {
                    return Err(ProtocolError::DepthExceeded);
                }
                self.items.push(Item { value, span: 1 });
                self.open.push(Open { item, left: elements, aside });
            }
        }
        self.close();
        Ok(())
    }

    fn count_element(&mut self) {
        if let Some(open) = self.open.last_mut() {
            open.left -= 1;
        }
    }

    /// Closes the aggregates that have all their elements.
    fn close(&mut self) {
        while let Some(&Open { item, left: 0, aside }) = self.open.last() {
            self.open.pop();
            if aside {
                self.items.truncate(item);
            } else {
                self.items[item].span = self.items.len() - item;
                self.count_element();
            }
        }
    }

    /// Decodes what stands at `done`, if all of it is there.
    fn next(&mut self) -> Result<Option<Next>, ProtocolError> {
        if let Some(bulk) = self.bulk {
            return self.bulk(bulk);
        }
        let Some(&sign) = self.buffer.get(self.done) else {
            return Ok(None);
        };
        if !SIGNS.contains(&sign) {
            return Err(ProtocolError::BadTypeByte(sign));
        }
        let Some(line) = self.line()? else {
            return Ok(None);
        };
        let text = &self.buffer[self.start + line.from..self.start + line.to];
        let scalar = match sign {
            b'+' => Value::Simple(line),
            b'-' => Value::Error(line),
            b':' => Value::Integer(integer(text)?),
            b'_' => null(text)?,
            b'#' => boolean(text)?,
            b',' => Value::Double(double(text)?),
            b'(' => big_number(text, line)?,
            _ => return self.sized(sign, line),
        };
        Ok(Some(Next::Scalar(scalar)))
    }

    /// The rest of the line behind a type byte, which is decoded with it.
    fn line(&mut self) -> Result<Option<Span>, ProtocolError> {
        let from = self.done + 1;
        let unscanned = self.scanned.max(from);
        let tail = &self.buffer[unscanned..];
        let Some(len) = tail.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
            self.scanned = self.buffer.len();
            return self.line_fits(self.scanned - from).map(|()| None);
        };
        let to = unscanned + len;
        self.scanned = to;
        self.line_fits(to - from)?;
        match (tail[len], tail.get(len + 1)) {
            (b'\r', None) => return Ok(None),
            (b'\r', Some(b'\n')) => {}
            _ => return Err(ProtocolError::BadLineEnd),
        }
        self.done = to + 2;
        Ok(Some(Span { from: from - self.start, to: to - self.start }))
    }

    fn line_fits(&self, len: usize) -> Result<(), ProtocolError> {
        if len > self.limits.line { Err(ProtocolError::ReplyTooLarge) } else { Ok(()) }
    }

    /// A bulk or an aggregate, by the line that says how large it is.
    fn sized(&mut self, sign: u8, line: Span) -> Result<Option<Next>, ProtocolError> {
        let text = &self.buffer[self.start + line.from..self.start + line.to];
        if text == b"?" || matches!(sign, b';' | b'.') {
            return Err(ProtocolError::Streamed);
        }
        if text == b"-1" && matches!(sign, b'$' | b'*') {
            return Ok(Some(Next::Scalar(Value::Null)));
        }
        let len = length(text)?;
        if matches!(sign, b'$' | b'!' | b'=') {
            if len > self.limits.bulk {
                return Err(ProtocolError::ReplyTooLarge);
            }
            let bulk = Bulk { sign, len };
            self.bulk = Some(bulk);
            return self.bulk(bulk);
        }
        let pairs = len.checked_mul(2).ok_or(ProtocolError::ReplyTooLarge)?;
        let (value, elements, aside) = match sign {
            b'*' => (Value::Array(len), len, false),
            b'~' => (Value::Set(len), len, false),
            b'%' => (Value::Map(len), pairs, false),
            b'|' => (Value::Map(len), pairs, true),
            // Some servers up to 7.0 put an invalidation into the middle of a reply (redis #8935, #12326).
            _ => (Value::Push(len), len, !self.open.is_empty()),
        };
        if elements > self.limits.elements {
            return Err(ProtocolError::ReplyTooLarge);
        }
        Ok(Some(Next::Aggregate { value, elements, aside }))
    }

    /// The bytes of a bulk and the line end behind them.
    fn bulk(&mut self, bulk: Bulk) -> Result<Option<Next>, ProtocolError> {
        let Bulk { sign, len } = bulk;
        let from = self.done;
        let to = from + len;
        match self.buffer.get(to..) {
            None | Some([]) => return Ok(None),
            Some([b'\r']) => return Ok(None),
            Some([b'\r', b'\n', ..]) => {}
            Some(_) => return Err(ProtocolError::BadLineEnd),
        }
        self.bulk = None;
        self.done = to + 2;
        let span = Span { from: from - self.start, to: to - self.start };
        Ok(Some(Next::Scalar(match sign {
            b'$' => Value::Bulk(span),
            b'!' => Value::BulkError(span),
            _ => verbatim(&self.buffer[from..to], span)?,
        })))
    }
}

/// A whole reply. Borrows the decoder's buffers.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    bytes: &'a [u8],
    /// Invariant: not empty, and the first one spans all.
    items: &'a [Item],
}

/// What a reply is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind<'a> {
    /// So many elements follow, as [`Reply::children`].
    Array(usize),
    BigNumber(&'a [u8]),
    Boolean(bool),
    Bulk(&'a [u8]),
    BulkError(&'a [u8]),
    Double(f64),
    Error(&'a [u8]),
    Integer(i64),
    /// So many pairs follow, each as two children.
    Map(usize),
    Null,
    Push(usize),
    Set(usize),
    Simple(&'a [u8]),
    /// The text, without its format.
    Verbatim(&'a [u8]),
}

impl<'a> Reply<'a> {
    pub fn kind(&self) -> Kind<'a> {
        let text = |span: Span| &self.bytes[span.from..span.to];
        match self.items[0].value {
            Value::Array(len) => Kind::Array(len),
            Value::BigNumber(span) => Kind::BigNumber(text(span)),
            Value::Boolean(boolean) => Kind::Boolean(boolean),
            Value::Bulk(span) => Kind::Bulk(text(span)),
            Value::BulkError(span) => Kind::BulkError(text(span)),
            Value::Double(double) => Kind::Double(double),
            Value::Error(span) => Kind::Error(text(span)),
            Value::Integer(integer) => Kind::Integer(integer),
            Value::Map(pairs) => Kind::Map(pairs),
            Value::Null => Kind::Null,
            Value::Push(len) => Kind::Push(len),
            Value::Set(len) => Kind::Set(len),
            Value::Simple(span) => Kind::Simple(text(span)),
            Value::Verbatim(span) => Kind::Verbatim(text(span)),
        }
    }

    /// The elements directly within it; of a map a key, its value, the next key, and so on.
    pub fn children(&self) -> Children<'a> {
        Children { bytes: self.bytes, items: &self.items[1..] }
    }
}

#[derive(Clone, Debug)]
pub struct Children<'a> {
    bytes: &'a [u8],
    items: &'a [Item],
}

impl<'a> Iterator for Children<'a> {
    type Item = Reply<'a>;

    fn next(&mut self) -> Option<Reply<'a>> {
        let (items, rest) = self.items.split_at(self.items.first()?.span);
        self.items = rest;
        Some(Reply { bytes: self.bytes, items })
    }
}

/// An optional sign and digits, without a zero in front.
fn integer(text: &[u8]) -> Result<i64, ProtocolError> {
    let digits = unsigned(text);
    let plain = matches!(digits, [b'1'..=b'9', ..] | [b'0']) && text != b"-0";
    if !plain || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ProtocolError::BadInteger);
    }
    ascii(text).parse().map_err(|_| ProtocolError::BadInteger)
}

fn length(text: &[u8]) -> Result<usize, ProtocolError> {
    match integer(text) {
        Ok(len) if text[0].is_ascii_digit() => {
            usize::try_from(len).map_err(|_| ProtocolError::BadLength)
        }
        Ok(_) => Err(ProtocolError::BadLength),
        Err(error) => Err(error),
    }
}

fn null(text: &[u8]) -> Result<Value, ProtocolError> {
    if text.is_empty() { Ok(Value::Null) } else { Err(ProtocolError::BadNull) }
}

fn boolean(text: &[u8]) -> Result<Value, ProtocolError> {
    match text {
        b"t" => Ok(Value::Boolean(true)),
        b"f" => Ok(Value::Boolean(false)),
        _ => Err(ProtocolError::BadBoolean),
    }
}

/// Decimal, infinite, or whatever the server's C library calls not a number.
fn double(text: &[u8]) -> Result<f64, ProtocolError> {
    let word = unsigned(text).to_ascii_lowercase();
    if word == b"nan" || (word.starts_with(b"nan(") && word.ends_with(b")")) {
        return Ok(f64::NAN);
    }
    let decimal = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    if word != b"inf" && !text.iter().all(decimal) {
        return Err(ProtocolError::BadDouble);
    }
    ascii(text).parse().map_err(|_| ProtocolError::BadDouble)
}

fn big_number(text: &[u8], span: Span) -> Result<Value, ProtocolError> {
    let digits = unsigned(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ProtocolError::BadInteger);
    }
    Ok(Value::BigNumber(span))
}

/// Three bytes of format and a colon go before the text.
fn verbatim(bytes: &[u8], span: Span) -> Result<Value, ProtocolError> {
    match bytes {
        [_, _, _, b':', ..] => Ok(Value::Verbatim(Span { from: span.from + 4, to: span.to })),
        _ => Err(ProtocolError::BadVerbatim),
    }
}

fn unsigned(text: &[u8]) -> &[u8] {
    match text {
        [b'+' | b'-', digits @ ..] => digits,
        _ => text,
    }
}

fn ascii(text: &[u8]) -> &str {
    std::str::from_utf8(text).unwrap_or_default()
}

/// Every byte that a reply, or a piece of a streamed one, can start with.
const SIGNS: &[u8] = b"+-:$*_#,(!=%~|>;.";

/// Moving fewer bytes than this to the front is not worth it.
const FORGET_BYTES_MIN: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A reply that owns what it says, for comparing.
    #[derive(Clone, Debug, PartialEq)]
    enum Tree {
        Array(Vec<Self>),
        BigNumber(Vec<u8>),
        Boolean(bool),
        Bulk(Vec<u8>),
        BulkError(Vec<u8>),
        Double(String),
        Error(Vec<u8>),
        Integer(i64),
        Map(Vec<Self>),
        Null,
        Push(Vec<Self>),
        Set(Vec<Self>),
        Simple(Vec<u8>),
        Verbatim(Vec<u8>),
    }

    fn tree(reply: Reply<'_>) -> Tree {
        let children = || -> Vec<Tree> { reply.children().map(tree).collect() };
        let counted = |count: usize| {
            let children = children();
            assert_eq!(children.len(), count);
            children
        };
        match reply.kind() {
            Kind::Array(len) => Tree::Array(counted(len)),
            Kind::BigNumber(digits) => Tree::BigNumber(digits.to_vec()),
            Kind::Boolean(boolean) => Tree::Boolean(boolean),
            Kind::Bulk(bytes) => Tree::Bulk(bytes.to_vec()),
            Kind::BulkError(text) => Tree::BulkError(text.to_vec()),
            Kind::Double(double) => Tree::Double(double.to_string()),
            Kind::Error(text) => Tree::Error(text.to_vec()),
            Kind::Integer(integer) => Tree::Integer(integer),
            Kind::Map(pairs) => Tree::Map(counted(2 * pairs)),
            Kind::Null => Tree::Null,
            Kind::Push(len) => Tree::Push(counted(len)),
            Kind::Set(len) => Tree::Set(counted(len)),
            Kind::Simple(text) => Tree::Simple(text.to_vec()),
            Kind::Verbatim(text) => Tree::Verbatim(text.to_vec()),
        }
    }

    type Outcome = (Vec<Tree>, Result<bool, ProtocolError>);

    /// What pieces of a stream decode to: the replies, and either whether it ends within a reply or how it
    /// broke.
    fn decode_with<'a>(limits: Limits, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
        let mut decoder = Decoder::new(limits);
        let mut replies = Vec::new();
        for piece in pieces {
            let mut result = decoder.feed(piece);
            while result.is_ok() {
                match decoder.decode() {
                    Ok(Some(reply)) => replies.push(tree(reply)),
                    Ok(None) => break,
                    Err(error) => result = Err(error),
                }
            }
            if let Err(error) = result {
                assert_eq!(decoder.feed(b"+OK\r\n"), Err(error), "an error is final");
                assert_eq!(decoder.decode().map(|_| ()), Err(error), "an error is final");
                return (replies, Err(error));
            }
        }
        (replies, Ok(decoder.is_mid_reply()))
    }

    /// Decodes whole, byte by byte, and cut in two and in three at every place. All must agree.
    fn decode(bytes: &[u8]) -> Outcome {
        let whole = decode_with(Limits::default(), [bytes]);
        assert_eq!(decode_with(Limits::default(), bytes.chunks(1)), whole, "byte by byte");
        for cut in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(decode_with(Limits::default(), [head, tail]), whole, "cut at {cut}");
            for second in (0..=tail.len()).take(if bytes.len() <= 40 { 41 } else { 0 }) {
                let (middle, tail) = tail.split_at(second);
                let pieces = [head, middle, tail];
                assert_eq!(decode_with(Limits::default(), pieces), whole, "cut at {cut}, {second}");
            }
        }
        whole
    }

    fn bulk(text: &str) -> Tree {
        Tree::Bulk(text.into())
    }

    fn simple(text: &str) -> Tree {
        Tree::Simple(text.into())
    }

    #[test]
    fn every_type() {
        let double = |text: &str| Tree::Double(text.into());
        let int = Tree::Integer;
        for (bytes, expected) in [
            ("+OK\r\n", simple("OK")),
            ("+\r\n", simple("")),
            ("-ERR no\r\n", Tree::Error("ERR no".into())),
            ("-\r\n", Tree::Error("".into())),
            (":0\r\n", int(0)),
            (":1\r\n", int(1)),
            (":-1\r\n", int(-1)),
            (":+1\r\n", int(1)),
            (":9223372036854775807\r\n", int(i64::MAX)),
            (":-9223372036854775808\r\n", int(i64::MIN)),
            ("$0\r\n\r\n", bulk("")),
            ("$5\r\nhello\r\n", bulk("hello")),
            ("$2\r\n\r\n\r\n", bulk("\r\n")),
            ("$-1\r\n", Tree::Null),
            ("*-1\r\n", Tree::Null),
            ("_\r\n", Tree::Null),
            ("#t\r\n", Tree::Boolean(true)),
            ("#f\r\n", Tree::Boolean(false)),
            (",1.5\r\n", double("1.5")),
            (",10\r\n", double("10")),
            (",-0\r\n", double("-0")),
            (",inf\r\n", double("inf")),
            (",-inf\r\n", double("-inf")),
            (",nan\r\n", double("NaN")),
            (",-nan\r\n", double("NaN")),
            (",NAN\r\n", double("NaN")),
            (",nan(0x1)\r\n", double("NaN")),
            (",9.9999999999999995e-08\r\n", double("0.0000001")),
            (",1.7976931348623157e+308\r\n", double(&f64::MAX.to_string())),
            (
                "(123456789012345678901234567890\r\n",
                Tree::BigNumber("123456789012345678901234567890".into()),
            ),
            ("(-1\r\n", Tree::BigNumber("-1".into())),
            ("!8\r\nERR a\r\nb\r\n", Tree::BulkError("ERR a\r\nb".into())),
            ("=7\r\ntxt:a:b\r\n", Tree::Verbatim("a:b".into())),
            ("=4\r\nmkd:\r\n", Tree::Verbatim("".into())),
            ("*0\r\n", Tree::Array(vec![])),
            (
                "*2\r\n+a\r\n*1\r\n$1\r\nb\r\n",
                Tree::Array(vec![simple("a"), Tree::Array(vec![bulk("b")])]),
            ),
            (
                "*3\r\n*0\r\n_\r\n*-1\r\n",
                Tree::Array(vec![Tree::Array(vec![]), Tree::Null, Tree::Null]),
            ),
            ("*1\r\n-ERR in\r\n", Tree::Array(vec![Tree::Error("ERR in".into())])),
            ("~2\r\n:1\r\n:1\r\n", Tree::Set(vec![int(1), int(1)])),
            ("%0\r\n", Tree::Map(vec![])),
            (
                "%2\r\n+a\r\n:1\r\n*1\r\n:2\r\n%1\r\n_\r\n#t\r\n",
                Tree::Map(vec![
                    simple("a"),
                    int(1),
                    Tree::Array(vec![int(2)]),
                    Tree::Map(vec![Tree::Null, Tree::Boolean(true)]),
                ]),
            ),
            (">2\r\n+invalidate\r\n_\r\n", Tree::Push(vec![simple("invalidate"), Tree::Null])),
        ] {
            assert_eq!(decode(bytes.as_bytes()), (vec![expected], Ok(false)), "{bytes:?}");
        }
    }

    #[test]
    fn text_need_not_be_utf8() {
        let bytes = b"-ERR \xff\xfe\0\r\n$3\r\n\xff\0\xfe\r\n";
        let expected =
            vec![Tree::Error(b"ERR \xff\xfe\0".to_vec()), Tree::Bulk(b"\xff\0\xfe".to_vec())];
        assert_eq!(decode(bytes), (expected, Ok(false)));
    }

    #[test]
    fn attributes_are_left_out_wherever_they_stand() {
        for bytes in [
            "|1\r\n+ttl\r\n:9\r\n*2\r\n:1\r\n:2\r\n",
            "*2\r\n|1\r\n+ttl\r\n*1\r\n:9\r\n:1\r\n:2\r\n",
            "*2\r\n:1\r\n|0\r\n|2\r\n+a\r\n|1\r\n_\r\n_\r\n+b\r\n+c\r\n+d\r\n:2\r\n",
        ] {
            let expected = Tree::Array(vec![Tree::Integer(1), Tree::Integer(2)]);
            assert_eq!(decode(bytes.as_bytes()), (vec![expected], Ok(false)), "{bytes:?}");
        }
        assert_eq!(decode(b"|1\r\n+a\r\n+b\r\n"), (vec![], Ok(true)), "it completes no reply");
    }

    #[test]
    fn a_push_within_a_reply_is_left_out_of_it() {
        let bytes = b"*2\r\n:1\r\n>2\r\n+invalidate\r\n*1\r\n+k\r\n:2\r\n+next\r\n";
        let expected = Tree::Array(vec![Tree::Integer(1), Tree::Integer(2)]);
        assert_eq!(decode(bytes), (vec![expected, simple("next")], Ok(false)));
    }

    #[test]
    fn replies_follow_one_another() {
        let bytes = b":1\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n+OK\r\n$-1\r\n";
        let push = Tree::Push(vec![bulk("invalidate"), Tree::Array(vec![bulk("k")])]);
        let expected = vec![Tree::Integer(1), push, simple("OK"), Tree::Null];
        assert_eq!(decode(bytes), (expected, Ok(false)));
    }

    #[test]
    fn an_end_within_a_reply_is_told_from_one_between_replies() {
        for (bytes, mid_reply) in [
            ("", false),
            ("+OK\r\n", false),
            ("+", true),
            ("+OK\r", true),
            ("$", true),
            ("$2\r\n", true),
            ("$2\r\nab", true),
            ("$2\r\nab\r", true),
            ("*2\r\n", true),
            ("*2\r\n:1\r\n", true),
            ("|1\r\n:1\r\n:2\r\n", true),
        ] {
            assert_eq!(decode(bytes.as_bytes()).1, Ok(mid_reply), "{bytes:?}");
        }
    }

    #[test]
    fn what_breaks_the_protocol() {
        use ProtocolError::*;
        for (bytes, error) in [
            ("HTTP/1.1 200 OK\r\n", BadTypeByte(b'H')),
            ("\r\n", BadTypeByte(b'\r')),
            ("\u{15}\u{3}\u{1}", BadTypeByte(0x15)),
            ("+OK\n", BadLineEnd),
            ("+O\rK\r\n", BadLineEnd),
            ("+OK\r\r\n", BadLineEnd),
            (":\r\n", BadInteger),
            (":+\r\n", BadInteger),
            (":-\r\n", BadInteger),
            (":01\r\n", BadInteger),
            (":-0\r\n", BadInteger),
            (":1 \r\n", BadInteger),
            (": 1\r\n", BadInteger),
            (":--1\r\n", BadInteger),
            (":1a\r\n", BadInteger),
            (":9223372036854775808\r\n", BadInteger),
            (":-9223372036854775809\r\n", BadInteger),
            ("$-2\r\n", BadLength),
            ("$+1\r\n", BadLength),
            ("*-2\r\n", BadLength),
            ("%-1\r\n", BadLength),
            ("~-1\r\n", BadLength),
            (">-1\r\n", BadLength),
            ("!-1\r\n", BadLength),
            ("$abc\r\n", BadInteger),
            ("$\r\n", BadInteger),
            ("*01\r\n", BadInteger),
            ("$1\r\nabc", BadLineEnd),
            ("$1\r\na\n\n", BadLineEnd),
            ("$1\r\na\rx", BadLineEnd),
            ("_x\r\n", BadNull),
            ("#\r\n", BadBoolean),
            ("#T\r\n", BadBoolean),
            ("#tf\r\n", BadBoolean),
            (",\r\n", BadDouble),
            (",1_0\r\n", BadDouble),
            (", 1\r\n", BadDouble),
            (",infinity\r\n", BadDouble),
            (",0x1\r\n", BadDouble),
            (",1e\r\n", BadDouble),
            (",nan(\r\n", BadDouble),
            ("(\r\n", BadInteger),
            ("(-\r\n", BadInteger),
            ("(1.5\r\n", BadInteger),
            ("=3\r\ntxt\r\n", BadVerbatim),
            ("=0\r\n\r\n", BadVerbatim),
            ("=5\r\ntxt.a\r\n", BadVerbatim),
            ("$?\r\n", Streamed),
            ("*?\r\n", Streamed),
            ("%?\r\n", Streamed),
            (";4\r\n", Streamed),
            (".\r\n", Streamed),
            ("*9223372036854775807\r\n", ReplyTooLarge),
            ("%9223372036854775807\r\n", ReplyTooLarge),
            ("%4611686018427387904\r\n", ReplyTooLarge),
            ("*1000000000\r\n", ReplyTooLarge),
            ("$1073741824\r\n", ReplyTooLarge),
            ("$9223372036854775807\r\n", ReplyTooLarge),
        ] {
            assert_eq!(decode(bytes.as_bytes()), (vec![], Err(error)), "{bytes:?}");
        }
    }

    #[test]
    fn an_error_does_not_take_back_the_replies_before_it() {
        let bytes = b"+OK\r\n:1\r\n:x\r\n+OK\r\n";
        let expected = vec![simple("OK"), Tree::Integer(1)];
        assert_eq!(decode(bytes), (expected, Err(ProtocolError::BadInteger)));
    }

    #[test]
    fn limits_hold_at_every_split_and_not_one_below() {
        let limits = Limits { depth: 3, elements: 6, bulk: 5, line: 6, buffered: 64 };
        for (bytes, error) in [
            ("*1\r\n*1\r\n*1\r\n:1\r\n", None),
            ("*1\r\n*1\r\n*1\r\n*0\r\n", Some(ProtocolError::DepthExceeded)),
            ("*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n", None),
            ("*2\r\n*4\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n", Some(ProtocolError::ReplyTooLarge)),
            ("|2\r\n:1\r\n:1\r\n:1\r\n:1\r\n*1\r\n:1\r\n", Some(ProtocolError::ReplyTooLarge)),
            ("$5\r\n12345\r\n", None),
            ("$6\r\n", Some(ProtocolError::ReplyTooLarge)),
            ("+123456\r\n", None),
            ("+1234567", Some(ProtocolError::ReplyTooLarge)),
        ] {
            let whole = decode_with(limits, [bytes.as_bytes()]);
            assert_eq!(whole.1.err(), error, "{bytes:?}");
            for cut in 0..bytes.len() {
                let (head, tail) = bytes.as_bytes().split_at(cut);
                assert_eq!(decode_with(limits, [head, tail]), whole, "{bytes:?} cut at {cut}");
            }
        }
        let mut decoder = Decoder::new(limits);
        assert_eq!(decoder.feed(&[b'+'; 65]), Err(ProtocolError::ReplyTooLarge));
    }

    /// redis 8.6 nests some 8000 arrays when a script returns a table that is too deep.
    #[test]
    fn deep_nesting_is_refused_without_recursion() {
        let (replies, end) = decode_with(Limits::default(), [b"*1\r\n".repeat(100_000).as_slice()]);
        assert_eq!((replies, end), (vec![], Err(ProtocolError::DepthExceeded)));
        let mut deep = b"*1\r\n".repeat(32);
        deep.extend_from_slice(b":1\r\n");
        assert_eq!(decode_with(Limits::default(), [deep.as_slice()]).0.len(), 1);
    }

    #[test]
    fn a_large_length_allocates_nothing() {
        let mut decoder = Decoder::new(Limits::default());
        decoder.feed(b"*65535\r\n$1048576\r\n").unwrap();
        assert!(matches!(decoder.decode(), Ok(None)));
        assert!(
            decoder.items.capacity() + decoder.open.capacity() + decoder.buffer.capacity() < 200
        );
    }

    #[test]
    fn the_buffers_of_small_replies_stay_small() {
        let mut decoder = Decoder::new(Limits::default());
        for _ in 0..10_000 {
            decoder.feed(b"+OK\r\n:1").unwrap();
            assert!(decoder.decode().unwrap().is_some());
            assert!(decoder.decode().unwrap().is_none());
            decoder.feed(b"\r\n").unwrap();
            assert!(decoder.decode().unwrap().is_some());
        }
        assert!(decoder.buffer.capacity() < 64, "{}", decoder.buffer.capacity());
    }

    #[test]
    fn a_reset_forgets_everything() {
        let mut decoder = Decoder::new(Limits::default());
        decoder.feed(b"*2\r\n$5\r\nab").unwrap();
        assert!(decoder.decode().unwrap().is_none());
        decoder.reset();
        assert!(!decoder.is_mid_reply());
        decoder.feed(b"?").unwrap();
        assert!(decoder.decode().is_err());
        decoder.reset();
        decoder.feed(b"+OK\r\n").unwrap();
        assert_eq!(decoder.decode().unwrap().map(tree), Some(simple("OK")));
    }

    fn encode(tree: &Tree, out: &mut Vec<u8>) {
        let line = |out: &mut Vec<u8>, sign: char, text: &str| {
            out.extend_from_slice(format!("{sign}{text}\r\n").as_bytes());
        };
        let sized = |out: &mut Vec<u8>, sign: char, bytes: &[u8]| {
            line(out, sign, &bytes.len().to_string());
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        };
        let many = |out: &mut Vec<u8>, sign: char, len: usize, elements: &[Tree]| {
            line(out, sign, &len.to_string());
            elements.iter().for_each(|element| encode(element, out));
        };
        let raw = |out: &mut Vec<u8>, sign: u8, text: &[u8]| {
            out.push(sign);
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        };
        match tree {
            Tree::Array(elements) => many(out, '*', elements.len(), elements),
            Tree::BigNumber(digits) => raw(out, b'(', digits),
            Tree::Boolean(boolean) => line(out, '#', if *boolean { "t" } else { "f" }),
            Tree::Bulk(bytes) => sized(out, '$', bytes),
            Tree::BulkError(text) => sized(out, '!', text),
            Tree::Double(text) => line(out, ',', text),
            Tree::Error(text) => raw(out, b'-', text),
            Tree::Integer(integer) => line(out, ':', &integer.to_string()),
            Tree::Map(elements) => many(out, '%', elements.len() / 2, elements),
            Tree::Null => line(out, '_', ""),
            Tree::Push(elements) => many(out, '>', elements.len(), elements),
            Tree::Set(elements) => many(out, '~', elements.len(), elements),
            Tree::Simple(text) => raw(out, b'+', text),
            Tree::Verbatim(text) => sized(out, '=', &[b"txt:", text.as_slice()].concat()),
        }
    }

    fn any_tree() -> impl Strategy<Value = Tree> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..20);
        let text = || {
            let byte = any::<u8>().prop_filter("no line end", |byte| !b"\r\n".contains(byte));
            prop::collection::vec(byte, 0..20)
        };
        let leaf = prop_oneof![
            text().prop_map(Tree::Simple),
            text().prop_map(Tree::Error),
            any::<i64>().prop_map(Tree::Integer),
            bytes().prop_map(Tree::Bulk),
            bytes().prop_map(Tree::BulkError),
            bytes().prop_map(Tree::Verbatim),
            Just(Tree::Null),
            any::<bool>().prop_map(Tree::Boolean),
            any::<f64>().prop_map(|double| Tree::Double(double.to_string())),
            "-?[0-9]{1,30}".prop_map(|digits| Tree::BigNumber(digits.into_bytes())),
        ];
        leaf.prop_recursive(5, 64, 5, |inner| {
            let elements = || prop::collection::vec(inner.clone(), 0..5);
            prop_oneof![
                elements().prop_map(Tree::Array),
                elements().prop_map(Tree::Set),
                elements().prop_map(|mut elements| {
                    elements.truncate(elements.len() / 2 * 2);
                    Tree::Map(elements)
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(
            trees in prop::collection::vec(any_tree(), 1..5),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut bytes = Vec::new();
            trees.iter().for_each(|tree| encode(tree, &mut bytes));
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            prop_assert_eq!(decode_with(Limits::default(), pieces), (trees, Ok(false)));
        }

        #[test]
        fn arbitrary_bytes_neither_panic_nor_depend_on_the_splits(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), prop::sample::select(&b"+-:$*_#,(!=%~|>;.\r\n0123?"[..])],
                0..64,
            ),
        ) {
            let whole = decode_with(Limits::default(), [bytes.as_slice()]);
            prop_assert_eq!(&decode_with(Limits::default(), bytes.chunks(1)), &whole);
            prop_assert_eq!(&decode_with(Limits::default(), bytes.chunks(3)), &whole);
        }
    }
}
