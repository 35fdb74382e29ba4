//! See `checks::session`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::session::check(data));
