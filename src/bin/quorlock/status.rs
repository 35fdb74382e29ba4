//! `quorlock status`: what each node says, and what it comes to.

use std::{
    io::{Write, stdout},
    os::unix::ffi::OsStrExt,
};

use quorlock::{KeyState, NodeStatus};

use crate::{
    args::Status,
    exit::{self, Failure},
    say::quoted,
};

pub(crate) fn main(options: &Status) -> Result<u8, Failure> {
    let resource = options.resource.as_bytes();
    let nodes = options.nodes.builder()?.status(resource).map_err(Failure::usage)?;
    let width = nodes.iter().map(|node| node.name().len()).max().unwrap_or(0);
    let mut text = String::new();
    for node in &nodes {
        let state = describe(node.state(), options.full_token);
        text += &format!("{:width$}  {state}\n", node.name());
    }
    let (code, summary) = sum_up(&nodes, options.full_token);
    text += &format!("{}: {summary}\n", quoted(resource));
    stdout().write_all(text.as_bytes()).map_err(Failure::system)?;
    Ok(code)
}

fn describe(state: &KeyState, full_token: bool) -> String {
    match state {
        KeyState::Free => "free".into(),
        KeyState::Held { token, remaining } => {
            let token = shown(token, full_token);
            match remaining {
                Some(left) => format!("held by {token}, expires in {left:.1?}"),
                None => format!("held by {token}, never expires: no lock is written like this"),
            }
        }
        KeyState::NotALock => "taken by a key that is no lock".into(),
        KeyState::Unknown(error) => format!("no answer: {error}"),
        _ => "something that this version does not know".into(),
    }
}

/// The exit code and the last line.
fn sum_up(nodes: &[NodeStatus], full_token: bool) -> (u8, String) {
    let quorum = nodes.len() / 2 + 1;
    let count =
        |is: &dyn Fn(&KeyState) -> bool| nodes.iter().filter(|node| is(node.state())).count();
    let silent = count(&|state| matches!(state, KeyState::Unknown(_)));
    let free = count(&|state| matches!(state, KeyState::Free));
    let of = nodes.len();
    for token in nodes.iter().filter_map(|node| holder(node.state())) {
        let held = count(&|state| holder(state) == Some(token));
        if held >= quorum {
            let token = shown(token, full_token);
            return (0, format!("held by {token} on {held} of {of} nodes"));
        }
    }
    if of - silent < quorum {
        let answered = of - silent;
        (exit::NO_QUORUM, format!("unknown: {answered} of {of} nodes answered (need {quorum})"))
    } else if free >= quorum {
        (exit::CONFLICT, format!("free on {free} of {of} nodes"))
    } else {
        (exit::CONFLICT, format!("split: nobody holds it on a quorum of {quorum} nodes"))
    }
}

fn holder(state: &KeyState) -> Option<&str> {
    match state {
        KeyState::Held { token, .. } => Some(token),
        _ => None,
    }
}

fn shown(token: &str, full: bool) -> String {
    match token.char_indices().nth(TOKEN_SHOWN) {
        Some((end, _)) if !full => format!("{}…", &token[..end]),
        _ => token.into(),
    }
}

/// Enough to tell two holders apart, and too little to release the lock with.
const TOKEN_SHOWN: usize = 8;
