//! Locks that are held, and the signal that they no longer are.

mod keep_alive;
mod local;
mod lock;
mod lost;

pub(crate) use self::lost::Held;
pub use self::lost::Lost;
pub use self::{keep_alive::KeepAlive, local::LocalGuard, lock::LockGuard, lost::LostSignal};
