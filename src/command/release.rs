//! LOCK.RELEASE: giving a lock back.

use super::parse::{Known, Parser};
use super::reply::{Complaint, complain, refuse};
use super::{FENCE, KEY, MODE, OWNER, WRITE};
use crate::ffi::command::{ArgKind, ArgSpec, KeyArgs, KeyUse};
use crate::ffi::{Args, Command, CommandSpec, Ctx, Str};
use crate::lock::request::{self as lock, Amount, Ask, Outcome, Request};
use crate::module::{config, serve};

/// `LOCK.RELEASE key owner [READ|WRITE] [ALL | TO n] [FENCE f]`
#[derive(Debug)]
pub struct Release;

impl Command for Release {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.release",
        flags: c"write fast",
        acl: WRITE,
        arity: -3,
        keys: KeyArgs::First(KeyUse::Change),
        summary: c"Gives one count of a lock back, or more. Replies with the counts left, or null when the owner held nothing.",
        complexity: c"O(log(N)) where N is the number of holders of the lock",
        since: c"0.1.0",
        args: &[KEY, OWNER, ArgSpec::new(c"mode", MODE).optional(), ArgSpec::new(c"amount", AMOUNT).optional(), FENCE],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let (key, request) = match parse(args) {
            Ok(parsed) => parsed,
            Err(complaint) => return complain(ctx, &complaint),
        };
        match serve(ctx, &[key], &request, None) {
            Ok(Outcome::Released(left)) => match left[0] {
                Some(left) => ctx.reply_integer(left as i64),
                None => ctx.reply_null(),
            },
            Ok(_) => ctx.reply_null(),
            Err(unserved) => refuse(ctx, unserved),
        }
    }
}

const AMOUNT: ArgKind =
    ArgKind::OneOf(&[ArgSpec::token(c"ALL", c"all"), ArgSpec::new(c"count", ArgKind::Integer).after(c"TO")]);

fn parse(args: Args<'_>) -> Result<(Str<'_>, Request), Complaint> {
    let mut parser = Parser::new(args, config::limits());
    let key = parser.need("key")?;
    let owner = parser.owner()?;
    let options = parser.options(&[Known::Read, Known::Write, Known::All, Known::To, Known::Fence])?;
    let amount = match (options.all, options.to) {
        (true, _) => Amount::All,
        (false, Some(count)) => Amount::To(count),
        (false, None) => Amount::One,
    };
    let ask = Ask::Release(lock::Release { mode: options.mode, amount, fence: options.fence });
    Ok((key, Request { owner, ask }))
}
