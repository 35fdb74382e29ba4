//! SHA-1 (FIPS 180-4) at compile time, for naming scripts as the servers do. Not for anything secret.

/// The digest of `message` as 40 lower-case hex digits.
pub const fn hex_digest(message: &[u8]) -> [u8; 40] {
    let mut state = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];
    // The message, a 1 bit, zeros, and the length in bits as the last eight bytes of a block.
    let blocks = (message.len() + 8) / 64 + 1;
    let mut block = 0;
    while block < blocks {
        state = compress(state, padded_block(message, block, blocks));
        block += 1;
    }
    hex(state)
}

const fn padded_block(message: &[u8], block: usize, blocks: usize) -> [u8; 64] {
    #[allow(clippy::as_conversions)] // widening; `From` is not const
    let bits = (message.len() as u64 * 8).to_be_bytes();
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        let at = block * 64 + i;
        if at < message.len() {
            bytes[i] = message[at];
        } else if at == message.len() {
            bytes[i] = 0x80;
        } else if block == blocks - 1 && i >= 56 {
            bytes[i] = bits[i - 56];
        }
        i += 1;
    }
    bytes
}

const fn compress(state: [u32; 5], block: [u8; 64]) -> [u32; 5] {
    let words = schedule(block);
    let [mut a, mut b, mut c, mut d, mut e] = state;
    let mut round = 0;
    while round < 80 {
        let (mixed, constant) = match round {
            0..20 => ((b & c) | (!b & d), 0x5A82_7999),
            20..40 => (b ^ c ^ d, 0x6ED9_EBA1),
            40..60 => ((b & c) | (b & d) | (c & d), 0x8F1B_BCDC),
            _ => (b ^ c ^ d, 0xCA62_C1D6_u32),
        };
        let next = a
            .rotate_left(5)
            .wrapping_add(mixed)
            .wrapping_add(e)
            .wrapping_add(constant)
            .wrapping_add(words[round]);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        round += 1;
    }
    [
        state[0].wrapping_add(a),
        state[1].wrapping_add(b),
        state[2].wrapping_add(c),
        state[3].wrapping_add(d),
        state[4].wrapping_add(e),
    ]
}

const fn schedule(block: [u8; 64]) -> [u32; 80] {
    let mut words = [0; 80];
    let mut i = 0;
    while i < 16 {
        words[i] = u32::from_be_bytes([
            block[4 * i],
            block[4 * i + 1],
            block[4 * i + 2],
            block[4 * i + 3],
        ]);
        i += 1;
    }
    while i < 80 {
        words[i] = (words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16]).rotate_left(1);
        i += 1;
    }
    words
}

const fn hex(state: [u32; 5]) -> [u8; 40] {
    let mut digits = [0; 40];
    let mut i = 0;
    while i < 40 {
        let nibble = (state[i / 8] >> (28 - 4 * (i % 8))) & 15;
        #[allow(clippy::as_conversions)] // below 16
        let nibble = nibble as usize;
        digits[i] = b"0123456789abcdef"[nibble];
        i += 1;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::hex_digest;

    /// The examples of FIPS 180 and RFC 3174, and the lengths at which the padding changes its shape (these
    /// from coreutils' sha1sum).
    #[test]
    fn known_digests() {
        for (message, digest) in [
            ("", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            ("abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
            ),
            (&"a".repeat(55), "c1c8bbdc22796e28c0e15163d20899b65621d65a"),
            (&"a".repeat(63), "03f09f5b158a7a8cdad920bddc29b81c18a551f5"),
            (&"a".repeat(64), "0098ba824b5c16427bd7a1122a5a442a25ec644d"),
            (&"a".repeat(1_000_000), "34aa973cd4c4daa4f61eeb2bdbad27316534016f"),
        ] {
            assert_eq!(str::from_utf8(&hex_digest(message.as_bytes())), Ok(digest));
        }
    }
}
