//! Ways to get the protocol wrong, to see that the tests would see.
//!
//! `mutant!(Name)` is the constant `false`, and `mutant!(Name => …)` nothing, but in a build with
//! `--cfg quorlock_mutants`: there each thread says which mutant it wants. `docs/mutants.md` tells which are caught,
//! and how soon.

#[cfg(not(quorlock_mutants))]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
    ($name:ident => $wrong:expr) => {};
}

#[cfg(quorlock_mutants)]
macro_rules! mutant {
    ($name:ident) => {
        crate::proto::mutant::is(crate::proto::mutant::Mutant::$name)
    };
    ($name:ident => $wrong:expr) => {
        #[allow(clippy::needless_return, unreachable_code)]
        if mutant!($name) {
            $wrong;
        }
    };
}

#[cfg(quorlock_mutants)]
pub use build::*;

#[cfg(quorlock_mutants)]
mod build {
    use std::cell::Cell;

    macro_rules! mutants {
        ($($name:ident: $wrong:literal,)*) => {
            #[derive(Clone, Copy, Debug, Eq, PartialEq)]
            pub enum Mutant { $($name,)* }

            impl Mutant {
                pub const ALL: &[Self] = &[$(Self::$name,)*];

                /// What it does wrong.
                pub fn wrong(self) -> &'static str {
                    match self { $(Self::$name => $wrong,)* }
                }
            }
        };
    }

    mutants! {
        AbandonedReplySkipped: "an attempt that is given up takes its entries out of the queue of expected replies",
        AnyNodeConfirms: "any node that has the key confirms a fencing token, whatever its count",
        CloseLeavesLocks: "closing the locker releases nothing",
        ConfirmationSkipped: "a fencing token that is to be confirmed is taken without a second round",
        CountedByOne: "one node's count is enough for a fencing token from one round trip",
        CounterStartsOver: "a counter that was lost with its server's memory begins at one again",
        DenialIgnored: "a node's \"not mine\" is not counted against the lock",
        DenierStays: "a node that has denied the lock is asked and counted again",
        DoubtIgnored: "an earlier, shorter extension that may still run is not reckoned with",
        DriftIgnored: "no drift is taken from the validity",
        ErrorIsGrant: "an error reply counts as a grant",
        ErrorIsRefusal: "an error reply counts as a refusal",
        ExpiredGrant: "a lock is handed out though its validity is over",
        ExtendAfterEnd: "an extension is begun, and believed, after the lock's end",
        ExtendAsksAll: "nodes that never granted the lock are asked to extend it",
        ExtendByAny: "one node is enough for an extension",
        ExtendCreates: "the extend script creates a key that is gone",
        ExtensionFromReply: "an extension's validity is counted from its replies",
        HalfIsQuorum: "half of an even number of nodes is a quorum",
        HandshakeCutShort: "the last reply of the handshake is not waited for",
        LateGrantStands: "a grant that comes after the fencing token was taken counts for an extension at once",
        LateReplyCredited: "the late reply to an attempt that is over counts for the next one",
        LossOnlyOnReply: "a loss is noticed when a reply comes, and not at the validity's end",
        LowestCountTaken: "the fencing token is the lowest count of a quorum",
        NoReleaseAfterCancel: "a request that is cancelled leaves its keys",
        NoReleaseAfterLoss: "an attempt that is lost leaves its keys",
        NoScriptIsGrant: "NOSCRIPT counts as done",
        OldExtensionCredited: "the late reply to one extension counts for the next one",
        OwedForgotten: "a release that a broken connection took with it is forgotten",
        PartialWriteForgotten: "what a socket did not take is not written again",
        PutOffForgotten: "a release that a node puts off (BUSY, LOADING, MISCONF) is forgotten",
        QueueOutlivesConnection: "the queue of expected replies is kept for the next connection",
        QuorumOfAnswering: "a quorum of the nodes that answer is enough",
        ReleaseAnything: "the release script does not compare tokens",
        ReleaseOnNewConnection: "a connection with an unanswered SET is closed, and the release goes over the next one",
        ReleaseOnlyWhereGranted: "nodes that have not answered the SET get no release",
        ReleasedByAny: "one node is enough for a release to be reported as done",
        RepairedStands: "a node to which the lock was put back counts for an extension at once",
        SentForgotten: "a SET that a broken connection took with it is taken for not sent",
        SetWithoutNx: "SET is sent without NX",
        SetWithoutPx: "SET is sent without PX",
        ShorteningIgnored: "a shorter extension ends the lock earlier only once it is answered",
        SilentNodeKept: "a connection over which nothing comes back is never given up",
        TokenReused: "an attempt uses the token of an earlier one",
        TtlSentLong: "the ttl that is sent is longer than the one that was asked for",
        TtlSentShort: "the ttl that is sent is shorter than the one that is counted with",
        ValidityFromReply: "the validity is counted from the replies",
        ValidityFromSend: "the validity is counted from the last SET that is sent, not from the first",
        WrongReplyTolerated: "a reply that its command cannot have is skipped, and the connection goes on",
    }

    thread_local! {
        static CURRENT: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// From now on this thread's engines are wrong in this way, or in none.
    pub fn become_mutant(mutant: Option<Mutant>) {
        CURRENT.set(mutant);
    }

    pub(crate) fn is(mutant: Mutant) -> bool {
        CURRENT.get() == Some(mutant)
    }

    pub const ACQUIRE_UNSEEDED: &str = "local count = redis.call('HINCRBY', KEYS[2], 'count', 1) \
         redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) return 'set ' .. count";

    pub const EXTEND_OR_CREATE: &str =
        "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 2";

    pub const RELEASE_ANYTHING: &str = "return redis.call('DEL', KEYS[1])";
}
