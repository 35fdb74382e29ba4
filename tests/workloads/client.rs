//! A client that takes, holds, extends and releases locks as it likes, and writes down what it relies on.
//!
//! What it claims is never more than what it was told: the clock is read before the validity, and that it lets go is
//! written before anything is sent.

use std::{thread, time::Duration};

use quorlock::{
    AcquireError, Builder, CloseError, ConnectError, ExtendError, Fencing, FencingToken, KeepAlive,
    LocalGuard, LocalLocker, LockGuard, LockRequest, Locker, RestartGuard, RetryPolicy, Token,
    internal::clock,
};

use super::{
    history::{Claim, Fenced, Line},
    ms,
    process::{Log, Orders, Phase, setting},
    secs,
    support::proxy::Random,
};

/// For how long resources that are fought for are taken: so short that pauses and outages are longer.
pub const TTL: Duration = ms(600);

/// What all clients want.
pub const RESOURCES: [&str; 3] = ["a", "b", "c"];

/// Plays the part to its end.
pub fn run(orders: &Orders) {
    // Half of them have one kind of locker, half the other.
    let number: u64 = setting("NUMBER").parse().unwrap();
    if number % 2 == 0 {
        Client::<LocalLocker>::new(number, orders).run();
    } else {
        Client::<Locker>::new(number, orders).run();
    }
}

struct Client<'a, L> {
    number: u64,
    orders: &'a Orders,
    log: Log,
    random: Random,
    locker: Option<L>,
    /// How many resources of its own it has had.
    own: u64,
}

/// How a held lock ends.
enum End {
    Released,
    Dropped,
}

impl<'a, L: Locking> Client<'a, L> {
    fn new(number: u64, orders: &'a Orders) -> Self {
        let seed: u64 = setting("SEED").parse().unwrap();
        let random = Random(seed ^ number);
        Self { number, orders, log: Log::open(), random, locker: None, own: 0 }
    }

    fn run(mut self) {
        self.connect(Phase::Work);
        while self.orders.phase() == Phase::Work {
            self.round();
        }
        self.settle();
        self.orders.wait_for(Phase::Prove);
        if self.orders.phase() == Phase::Prove {
            self.prove();
        }
        self.orders.wait_for(Phase::End);
    }

    /// There may be no quorum just now.
    fn connect(&mut self, until: Phase) {
        let always = setting("GUARD") == "always";
        let guard = if always { RestartGuard::Always } else { RestartGuard::Off };
        let builder = Builder::new().nodes(setting("NODES").split(',')).restart_guard(guard);
        // Some put their locks back on nodes that have forgotten them.
        let builder = builder.repair(self.number % 3 == 0);
        let builder = builder.retry(RetryPolicy::jittered(ms(5), ms(30)));
        let builder = if always { builder.ttl_max(TTL) } else { builder };
        while self.locker.is_none() && self.orders.phase() <= until {
            self.locker = L::connect(builder.clone().ttl(TTL)).ok();
        }
    }

    fn round(&mut self) {
        if setting("OWN") == "yes" && self.random.below(3) == 0 {
            return self.have_own();
        }
        let resource = RESOURCES[self.random.below(3) as usize];
        let kept_alive = self.random.below(3) == 0;
        let fencing = self.some_fencing();
        let request = self.locker().lock(resource).timeout(ms(300)).fencing(fencing);
        let asked = clock::now().as_nanos();
        match if kept_alive { L::acquire_kept(request) } else { L::acquire(request) } {
            Ok(guard) => {
                self.fenced(resource, &guard, asked);
                self.hold(resource, &guard, kept_alive).end(self, guard);
            }
            Err(error) => self.failed(&error),
        }
    }

    fn some_fencing(&mut self) -> Fencing {
        match self.random.below(4) {
            0 => Fencing::Confirmed,
            1 => Fencing::OneRoundTrip,
            _ => Fencing::Off,
        }
    }

    /// A lock that nobody else wants and that would stay for long: its keys tell whether a release is done.
    fn have_own(&mut self) {
        self.own += 1;
        let resource = format!("own-{}-{}", self.number, self.own);
        self.log.line(&Line::Own { resource: resource.clone() }.to_string());
        match L::acquire(self.locker().lock(&resource).ttl(secs(300)).timeout(ms(50))) {
            Ok(guard) => {
                self.claim(&resource, &guard, 0);
                // For as long as connections take to break, or for no time at all.
                thread::sleep(ms(self.random.below(2) * self.random.below(60)));
                self.some_end().end(self, guard);
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Relies on the lock for a while, in one way or another.
    fn hold(&mut self, resource: &str, guard: &L::Guard, kept_alive: bool) -> End {
        let until = self.claim(resource, guard, 0);
        let for_ms = match self.random.below(10) {
            0..7 => self.random.below(10),
            7..9 => 50 + self.random.below(200),
            // Often past its end, where nobody extends it.
            _ => 300 + self.random.below(700),
        };
        let until = self.rely(resource, guard, ms(for_ms), until);
        if !kept_alive && self.random.below(3) == 0 {
            let until = self.extend(resource, guard, until);
            let for_ms = self.random.below(60);
            self.rely(resource, guard, ms(for_ms), until);
        }
        self.some_end()
    }

    fn some_end(&mut self) -> End {
        if self.random.below(2) == 0 { End::Released } else { End::Dropped }
    }

    /// Looks at the lock every now and then. Returns until when it was claimed.
    fn rely(&self, resource: &str, guard: &L::Guard, time: Duration, claimed: u64) -> u64 {
        let (end, mut claimed) = (clock::now().after(time), claimed);
        while clock::now() < end {
            thread::sleep(ms(5).min(end.since(clock::now())));
            claimed = self.claim(resource, guard, claimed);
            if guard.validity().is_zero() {
                self.let_go(guard);
                self.count("lost");
                return 0;
            }
        }
        claimed
    }

    fn extend(&mut self, resource: &str, guard: &L::Guard, claimed: u64) -> u64 {
        let shorter = self.random.below(3) == 0;
        let ttl = if shorter { TTL / 3 } else { TTL };
        if shorter {
            self.let_go(guard);
        }
        match guard.extend(ttl) {
            Ok(_) => self.count("extended"),
            Err(ExtendError::Lost(_) | ExtendError::Expired) => self.count("too-late-to-extend"),
            Err(ExtendError::NoQuorum { .. }) => self.count("not-extended"),
            Err(error) => panic!("{error}"),
        }
        self.claim(resource, guard, if shorter { 0 } else { claimed })
    }

    /// Writes down what is claimed, if that is more than before.
    fn claim(&self, resource: &str, guard: &L::Guard, claimed: u64) -> u64 {
        let from = clock::now();
        let until = from.after(guard.validity()).as_nanos();
        if until <= claimed + SAME || until == from.as_nanos() {
            return claimed;
        }
        let (resource, token) = (resource.into(), guard.token().as_str().into());
        self.log.line(
            &Line::Claim(Claim { resource, token, from: from.as_nanos(), until }).to_string(),
        );
        until
    }

    fn fenced(&self, resource: &str, guard: &L::Guard, asked: u64) {
        if let Some(token) = guard.fencing_token() {
            let (resource, number, given) = (resource.into(), token.get(), clock::now().as_nanos());
            self.log.line(&Line::Fenced(Fenced { resource, number, asked, given }).to_string());
        }
    }

    fn let_go(&self, guard: &L::Guard) {
        let at = clock::now().as_nanos();
        self.log.line(&Line::LetGo { token: guard.token().as_str().into(), at }.to_string());
    }

    fn failed(&self, error: &AcquireError) {
        self.count(match error {
            AcquireError::Contended(_) => "contended",
            AcquireError::DeadlineExceeded(_) => "deadline-exceeded",
            AcquireError::Expired(_) => "expired",
            AcquireError::NoQuorum(_) => "no-quorum",
            error => panic!("{error}"),
        });
    }

    fn count(&self, what: &str) {
        self.log.line(&Line::Count { what: what.into() }.to_string());
    }

    fn settle(&mut self) {
        let unconfirmed = self.locker.take().map_or(0, L::settle);
        self.log.line(&Line::Settled { unconfirmed }.to_string());
    }

    /// Has everything that everybody wants.
    fn prove(&mut self) {
        self.connect(Phase::Prove);
        for resource in RESOURCES {
            let guard = L::acquire(self.locker().lock(resource).timeout(PROOF_TIMEOUT)).unwrap();
            self.claim(resource, &guard, 0);
            End::Released.end(self, guard);
            self.log.line(&Line::Proved { resource: resource.into() }.to_string());
        }
    }

    fn locker(&self) -> &L {
        self.locker.as_ref().expect("connected")
    }
}

impl End {
    fn end<L: Locking>(self, client: &Client<'_, L>, guard: L::Guard) {
        let token = guard.token().as_str().into();
        client.let_go(&guard);
        match self {
            Self::Released if guard.release() => client.count("release-confirmed"),
            Self::Released => client.count("release-not-confirmed"),
            Self::Dropped => client.count("dropped"),
        }
        client.log.line(&Line::Released { token }.to_string());
    }
}

/// Both kinds of locker.
trait Locking: Sized {
    type Guard: Holding;

    fn connect(builder: Builder) -> Result<Self, ConnectError>;
    fn lock<'a>(&'a self, resource: &'a str) -> LockRequest<'a, Self>;
    fn acquire(request: LockRequest<'_, Self>) -> Result<Self::Guard, AcquireError>;
    /// One that is kept alive, where there is somebody who can.
    fn acquire_kept(request: LockRequest<'_, Self>) -> Result<Self::Guard, AcquireError>;
    /// How many releases are not answered by every node.
    fn settle(self) -> usize;
}

trait Holding {
    fn validity(&self) -> Duration;
    fn extend(&self, ttl: Duration) -> Result<Duration, ExtendError>;
    /// Whether that is confirmed.
    fn release(self) -> bool;
    fn token(&self) -> &Token;
    fn fencing_token(&self) -> Option<FencingToken>;
}

macro_rules! locking {
    ($locker:ty, $guard:ty, $connect:ident, $($own:tt)*) => {
        impl Locking for $locker {
            type Guard = $guard;

            fn connect(builder: Builder) -> Result<Self, ConnectError> {
                builder.$connect()
            }

            fn lock<'a>(&'a self, resource: &'a str) -> LockRequest<'a, Self> {
                self.lock(resource)
            }

            fn acquire(request: LockRequest<'_, Self>) -> Result<$guard, AcquireError> {
                request.acquire()
            }

            $($own)*
        }

        impl Holding for $guard {
            fn validity(&self) -> Duration {
                self.validity()
            }

            fn extend(&self, ttl: Duration) -> Result<Duration, ExtendError> {
                self.extend(ttl)
            }

            fn release(self) -> bool {
                self.release().is_ok()
            }

            fn token(&self) -> &Token {
                self.token()
            }

            fn fencing_token(&self) -> Option<FencingToken> {
                self.fencing_token()
            }
        }
    };
}

locking! {
    LocalLocker, LocalGuard, connect_local,
    fn acquire_kept(request: LockRequest<'_, Self>) -> Result<LocalGuard, AcquireError> {
        request.try_acquire()
    }

    fn settle(self) -> usize {
        self.flush(SETTLE_TIMEOUT)
    }
}

locking! {
    Locker, LockGuard, connect,
    fn acquire_kept(request: LockRequest<'_, Self>) -> Result<LockGuard, AcquireError> {
        request.keep_alive(KeepAlive::default()).acquire()
    }

    fn settle(self) -> usize {
        match self.close(SETTLE_TIMEOUT) {
            Ok(()) => 0,
            Err(CloseError::Unconfirmed { releases }) => releases,
            Err(error) => panic!("{error}"),
        }
    }
}

/// In nanoseconds: what the same end may look like when it is computed at another time.
const SAME: u64 = 1_000_000;

/// After the faults, with all servers up. Both are far above what it takes, also on a machine that is busy.
const SETTLE_TIMEOUT: Duration = secs(20);
const PROOF_TIMEOUT: Duration = secs(20);
