//! LOCK.EXTEND: moving the end of a lease.

use super::parse::{Known, Parser};
use super::reply::{Complaint, complain, refuse};
use super::{FENCE, KEY, LEASE, OWNER, WRITE};
use crate::ffi::command::{ArgSpec, KeyArgs, KeyUse};
use crate::ffi::{Args, Command, CommandSpec, Ctx, Str};
use crate::lock::request::{self as lock, Ask, Outcome, Request};
use crate::module::{config, serve};

/// `LOCK.EXTEND key owner PX ms | EX s [FENCE f]`
#[derive(Debug)]
pub struct Extend;

impl Command for Extend {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.extend",
        flags: c"write fast",
        acl: WRITE,
        arity: -5,
        keys: KeyArgs::First(KeyUse::Change),
        summary: c"Lets the lease end that long from now, be it earlier or later than before. \
                   Replies with the fence, or null when the owner held nothing.",
        complexity: c"O(log(N)) where N is the number of holders of the lock",
        since: c"0.1.0",
        args: &[KEY, OWNER, ArgSpec::new(c"lease", LEASE), FENCE],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let (key, request) = match parse(args) {
            Ok(parsed) => parsed,
            Err(complaint) => return complain(ctx, &complaint),
        };
        match serve(ctx, &[key], &request, None) {
            Ok(Outcome::Extended(fences)) => match fences[0] {
                Some(fence) => ctx.reply_integer(fence.get() as i64),
                None => ctx.reply_null(),
            },
            Ok(_) => ctx.reply_null(),
            Err(unserved) => refuse(ctx, unserved),
        }
    }
}

fn parse(args: Args<'_>) -> Result<(Str<'_>, Request), Complaint> {
    let mut parser = Parser::new(args, config::limits());
    let key = parser.need("key")?;
    let owner = parser.owner()?;
    let options = parser.options(&[Known::Px, Known::Ex, Known::Fence])?;
    let lease = options.lease.ok_or(Complaint::NoLease)?;
    let ask = Ask::Extend(lock::Extend { lease, fence: options.fence });
    Ok((key, Request { owner, ask }))
}
