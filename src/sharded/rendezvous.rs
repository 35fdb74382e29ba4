//! Which group a resource belongs to: rendezvous hashing, the same on every platform and in every version.
//!
//! Each group has a weight for each resource, a hash of the two, and the resource belongs to the group whose
//! weight is the highest (Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996). A group
//! that is added takes resources from the others and moves none between them; one that is removed leaves its
//! own alone.
//!
//! Processes that disagree here are two holders of one lock. So nothing in this file may ever change a weight:
//! the tests hold it to fixed values.

/// FNV-1a, 64 bits (draft-eastlake-fnv), of a group's name or a resource.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(FNV_OFFSET, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

/// A group's weight for a resource, from their hashes.
pub(super) fn weight(group: u64, resource: u64) -> u64 {
    mix(group ^ resource)
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): FNV's last bytes hardly reach its upper bits, and
/// behind this each bit decides over every other.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

const FNV_OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01B3;

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV's from its draft, SplitMix64's the first number from the seed 0, and the weights from a second
    /// implementation. They stand for what deployed processes compute.
    #[test]
    fn no_value_ever_changes() {
        assert_eq!(hash(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(hash(b"a"), 0xAF63_DC4C_8601_EC8C);
        assert_eq!(hash(b"foobar"), 0x8594_4171_F739_67E8);
        assert_eq!(mix(0x9E37_79B9_7F4A_7C15), 0xE220_A839_7B1D_CDAF);
        let every_byte: Vec<u8> = (0..=u8::MAX).collect();
        for (group, resource, expected) in [
            ("a", &b"orders/42"[..], 0x6701_35B3_7B93_F873),
            ("b", b"orders/42", 0xB959_249D_B971_2CEA),
            ("a", b"", 0x9CD9_567F_7F72_9003),
            ("north", &every_byte, 0xDCE6_D0D8_2B92_07B8),
        ] {
            assert_eq!(weight(hash(group.as_bytes()), hash(resource)), expected, "{group}");
        }
    }
}
