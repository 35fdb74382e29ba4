//! Commands: arrays of bulks, and nothing else.
//!
//! Lengths are in bytes, so any bytes pass through. Never an inline command, and never an empty one: servers
//! skip `*0` without a reply, which would leave every later reply with the wrong command.

/// Appends one command.
pub fn command(out: &mut Vec<u8>, args: &[&[u8]]) {
    assert!(!args.is_empty(), "an empty command gets no reply");
    header(out, b'*', args.len());
    for arg in args {
        header(out, b'$', arg.len());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

fn header(out: &mut Vec<u8>, sign: u8, len: usize) {
    out.push(sign);
    out.extend_from_slice(Decimal::new(u64::try_from(len).unwrap_or(u64::MAX)).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// A number in decimal, without an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    digits: [u8; Self::LEN_MAX],
    /// Where the first digit stands.
    start: usize,
}

impl Decimal {
    const LEN_MAX: usize = 20;

    pub fn new(mut number: u64) -> Self {
        let mut digits = [b'0'; Self::LEN_MAX];
        let mut start = Self::LEN_MAX;
        loop {
            start -= 1;
            digits[start] += u8::try_from(number % 10).unwrap_or(0);
            number /= 10;
            if number == 0 {
                return Self { digits, start };
            }
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_an_array_of_bulks() {
        let mut out = b"before".to_vec();
        command(&mut out, &[b"SET", b"k\r\n\0\xff", b"", b"NX"]);
        assert_eq!(out, b"before*4\r\n$3\r\nSET\r\n$5\r\nk\r\n\0\xff\r\n$0\r\n\r\n$2\r\nNX\r\n");
    }

    #[test]
    #[should_panic(expected = "an empty command gets no reply")]
    fn an_empty_command_is_never_sent() {
        command(&mut Vec::new(), &[]);
    }

    #[test]
    fn decimals() {
        for number in [0, 1, 9, 10, 99, 100, 4096, u64::MAX - 1, u64::MAX] {
            assert_eq!(Decimal::new(number).as_bytes(), number.to_string().as_bytes());
        }
    }
}
