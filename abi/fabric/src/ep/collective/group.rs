//! Groups: joining one, leaving it, and its end.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::run::{End, Run};
use super::*;
use crate::av::set::{AvSetObject, new_address};
use crate::ep::object::EpObject;
use crate::nosys;
use crate::object::{find, handle_of, input, object, place, remove, status};
use rkey_rdm::collective::inbox::{Body, Key, LEFT};
use rkey_rdm::collective::kind::Kind;
use rkey_rdm::collective::plan::Plan;
use rkey_rdm::header::Kind as HeaderKind;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Weak;
use std::time::Duration;

/// What a program has a handle of.
#[repr(C)]
struct McObject {
    fid: UnsafeCell<FidMc>,
    ep: Weak<Endpoint>,
    /// Where its events are.
    eq: Arc<Eq>,
    address: u64,
}
object!(McObject, FidMc, 65536);

static FID_OPS: Ops = Ops {
    close,
    ..nosys::OPS
};

/// A group that the endpoint is in.
pub(super) struct Group {
    /// By which the program knows it.
    pub(super) address: u64,
    pub(super) name: Name,
    pub(super) members: Vec<Member>,
    /// Our place among them.
    pub(super) rank: usize,
    /// The number of the next operation.
    pub(super) next: u32,
    /// Everybody has joined.
    pub(super) joined: bool,
    /// Why nothing works any more.
    pub(super) broken: Option<FiError>,
    /// The handle, and the context of the call that joined.
    pub(super) fid: usize,
    pub(super) context: usize,
}

pub(super) struct Member {
    pub(super) address: SocketAddr,
    /// It has left, or its connection is lost.
    pub(super) left: bool,
}

impl Group {
    pub(super) fn rank_of(&self, address: SocketAddr) -> Option<usize> {
        self.members.iter().position(|it| it.address == address)
    }
}

/// What a member is told of another that has left (no error), or of a failure.
fn leave(name: Name, error: Option<FiError>) -> Header {
    Header {
        tag: name.members,
        data: u64::from(name.instance) << 32 | error.map_or(0, |error| error.0 as u64),
        ..Header::new(HeaderKind::Leave)
    }
}

/// `fi_join_collective`.
///
/// # Safety
/// Arguments as fi_collective(3) asks for them.
pub(in crate::ep) unsafe extern "C" fn join(
    ep: *mut FidEp,
    addr: *const c_void,
    flags: u64,
    mc: *mut *mut FidMc,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        if flags & FI_COLLECTIVE == 0 {
            tracing::warn!("there are no multicast groups, only collective ones");
            return Err(FiError::NOSYS);
        }
        let sides = flags & (FI_SEND | FI_RECV);
        if flags & !(FI_COLLECTIVE | FI_SEND | FI_RECV) != 0 {
            return Err(FiError::BADFLAGS);
        }
        if sides != 0 && sides != FI_SEND | FI_RECV {
            tracing::warn!("a member of a collective group both sends and receives");
            return Err(FiError::OPNOTSUPP);
        }
        // SAFETY: with this flag the address is of a collective, as the caller promises.
        let addr = unsafe { input(addr.cast::<CollectiveAddr>())? };
        // SAFETY: a handle, or something that is refused.
        let set = unsafe { find::<AvSetObject, _>(addr.set)? };
        ep.check_collective()?;
        let live = ep.live()?;
        let Some(eq) = &live.eq else {
            tracing::warn!("an endpoint needs an event queue to join a collective group");
            return Err(FiError::NOEQ);
        };
        let members = ep.members(live, &set.inner)?;
        let by_itself = addr.coll_addr == FI_ADDR_NOTAVAIL;
        if !by_itself && addr.coll_addr != set.inner.address {
            let mut state = live.state.lock();
            let known = state.collective.as_mut();
            known
                .and_then(|it| it.group(addr.coll_addr))
                .ok_or(FiError::INVAL)?;
        }
        let address = new_address();
        let object = McObject {
            fid: UnsafeCell::new(FidMc {
                fid: Fid::new(FI_CLASS_MC, context, &FID_OPS),
                fi_addr: address,
            }),
            ep: Arc::downgrade(ep),
            eq: Arc::clone(eq),
            address,
        };
        // SAFETY: room for a handle, as the caller promises.
        let fid = handle_of(unsafe { place(object, mc)? }) as usize;
        ep.enter(live, members, address, (fid, context as usize), by_itself);
        Ok(())
    })
}

/// `fi_close` of a group: the endpoint leaves it.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program uses the group no more; a handle, or something that is refused.
        let object = unsafe { remove::<McObject, _>(fid)? };
        if let Some(ep) = object.ep.upgrade() {
            ep.leave(object.address);
        }
        // The next group may get the same handle.
        object.eq.forget(fid as usize);
        Ok(())
    })
}

impl Endpoint {
    /// Whether it takes part in collective operations at all.
    pub(super) fn check_collective(&self) -> Result<()> {
        if self.ep_type != FI_EP_RDM {
            return Err(FiError::OPNOTSUPP);
        }
        self.check_caps(FI_COLLECTIVE)
    }

    /// The members of a set, and our place among them.
    fn members(&self, live: &Live, set: &crate::av::set::AvSet) -> Result<(Vec<Member>, usize)> {
        let own = *live.name.lock();
        if !live.av.as_ref().is_some_and(|av| Arc::ptr_eq(av, &set.av)) {
            tracing::warn!("the set is of another address vector than the endpoint's");
            return Err(FiError::INVAL);
        }
        let mut members = Vec::new();
        for number in set.members() {
            let allowed = set.av.allows(number, &self.group.key);
            let address = set.av.get(number).filter(|_| allowed);
            members.push(Member {
                address: address.ok_or(FiError::INVAL)?,
                left: false,
            });
        }
        if members.len() > MEMBERS_MAX {
            return Err(FiError::MSGSIZE);
        }
        let mut addresses: Vec<_> = members.iter().map(|member| member.address).collect();
        addresses.sort_unstable();
        if addresses.windows(2).any(|pair| pair[0] == pair[1]) {
            tracing::warn!("an endpoint is in the set twice");
            return Err(FiError::INVAL);
        }
        let rank = members.iter().position(|member| member.address == own);
        let rank = rank.ok_or_else(|| {
            tracing::warn!(
                "the endpoint, {}, is no member of the set",
                rkey_rdm::address::to_text(own)
            );
            FiError::INVAL
        })?;
        Ok((members, rank))
    }

    /// Enters a group, and waits for the others to do so.
    fn enter(
        self: &Arc<Self>,
        live: &Live,
        (members, rank): (Vec<Member>, usize),
        address: u64,
        (fid, context): (usize, usize),
        by_itself: bool,
    ) {
        let hash = names::members(members.iter().map(|member| member.address));
        let n = members.len();
        let mut guard = live.state.lock();
        let state = &mut *guard;
        let it = state.collective.get_or_insert_default();
        let instance = it.instances.entry(hash).or_default();
        let name = Name {
            members: hash,
            instance: *instance,
        };
        *instance += 1;
        let mut group = Group {
            address,
            name,
            members,
            rank,
            next: 1,
            joined: false,
            broken: None,
            fid,
            context,
        };
        // Members that were here before us, and could not go on.
        let mut early = None;
        for member in &mut group.members {
            let key = Key {
                from: member.address,
                group: name,
                seq: LEFT,
            };
            while let Some(chunk) = it.inbox.take(&key) {
                if let Body::Left(error) = chunk.body {
                    member.left = true;
                    early = early.or(progress::reported(error.into()));
                }
            }
        }
        it.groups.push(group);
        if by_itself {
            self.joined(live, state, address);
        }
        if let Some(error) = early {
            self.break_up(state, address, error);
        }
        if by_itself {
            return;
        }
        let it = state.collective.get_or_insert_default();
        it.started += 1;
        let number = it.started;
        let plan = Plan::new(Kind::Barrier, n, rank, 0);
        it.runs.push(Run::new(number, address, 0, plan, End::Join));
        self.carry_on(live, state);
        drop(guard);
        // Joining goes on whatever the program does (FI_PROGRESS_AUTO of control).
        if !self.domain.auto_progress {
            let ep = Arc::clone(self);
            let spawned = std::thread::Builder::new()
                .name("rkey-fi-join".to_owned())
                .spawn(move || ep.attend(address));
            if let Err(error) = spawned {
                tracing::debug!(%error, "the program has to make progress while it joins");
            }
        }
    }

    /// The thread of a group that is being joined.
    fn attend(&self, address: u64) {
        let time = Duration::from_millis(50);
        while !self.closing.load(Ordering::Acquire) {
            let Some(live) = self.live.get() else { return };
            {
                let mut state = live.state.lock();
                if self.closing.load(Ordering::Acquire) {
                    return;
                }
                self.advance(live, &mut state);
                let Some(it) = &mut state.collective else {
                    return;
                };
                // Members that still have to hear of the end may wait for us.
                let told = it.telling.is_empty();
                let over = |group: &mut Group| group.joined || told && group.broken.is_some();
                if it.group(address).is_none_or(over) {
                    return;
                }
            }
            if live.cq.wait(Some(time)).is_err() {
                return;
            }
        }
    }

    /// Everybody is there.
    pub(super) fn joined(&self, live: &Live, state: &mut State, address: u64) {
        let group = state.collective.as_mut().and_then(|it| it.group(address));
        if let (Some(group), Some(eq)) = (group, &live.eq) {
            group.joined = true;
            eq.completed(FI_JOIN_COMPLETE, group.fid, group.context, 0);
        }
    }

    /// Not everybody will be there.
    pub(super) fn not_joined(&self, live: &Live, state: &mut State, address: u64, error: FiError) {
        let group = state.collective.as_mut().and_then(|it| it.group(address));
        if let (Some(group), Some(eq)) = (group, &live.eq) {
            eq.failed(crate::eq::Failure {
                fid: group.fid,
                context: group.context,
                data: 0,
                error,
                error_data: Vec::new(),
            });
        }
    }

    /// Leaves a group. What is under way in it ends.
    fn leave(&self, address: u64) {
        let Some(live) = self.live.get() else { return };
        let mut guard = live.state.lock();
        let state = &mut *guard;
        let Some(it) = &mut state.collective else {
            return;
        };
        let busy = it.runs.iter().any(|run| run.group == address);
        if busy {
            self.break_up(state, address, FiError::CANCELED);
            self.carry_on(live, state);
        }
        let Some(it) = &mut state.collective else {
            return;
        };
        let Some(index) = it.groups.iter().position(|it| it.address == address) else {
            return;
        };
        let group = it.groups.remove(index);
        it.inbox.forget_group(group.name);
        if group.broken.is_none() {
            for (_, member) in group.others() {
                let Some(peer) = state.peers.find(member.address) else {
                    continue;
                };
                if let rkey_rdm::peers::Way::Open(connection) = state.peers[peer].way {
                    self.say(state, connection, &leave(group.name, None), &[]);
                }
            }
        }
    }

    /// A group cannot go on: everybody is told, once.
    pub(super) fn break_up(&self, state: &mut State, address: u64, error: FiError) {
        let Some(it) = &mut state.collective else {
            return;
        };
        let Some(group) = it
            .groups
            .iter_mut()
            .find(|group| group.address == address && group.broken.is_none())
        else {
            return;
        };
        group.broken = Some(error);
        tracing::warn!(
            "a collective group of {} ends: {error:?}",
            group.members.len()
        );
        let header = leave(group.name, Some(error));
        let others = group.others();
        it.telling
            .extend(others.map(|(_, member)| (member.address, header)));
    }

    /// A member has left a group, or failed in it.
    pub(super) fn heard_leave(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        header: &Header,
    ) {
        let from = state.connections[connection].peer;
        let (name, error) = chunks::named(header);
        let it = state.collective.get_or_insert_default();
        let was = it.was(name);
        match it.named(name) {
            Some(group) => {
                let Some(rank) = group.rank_of(from) else {
                    return;
                };
                let address = group.address;
                match progress::reported(error.into()) {
                    None => group.members[rank].left = true,
                    Some(error) => self.break_up(state, address, error),
                }
            }
            None if was => {}
            None => self.keep_chunk(
                live,
                state,
                Key {
                    from,
                    group: name,
                    seq: LEFT,
                },
                inbox::Chunk {
                    connection,
                    id: 0,
                    signature: 0,
                    body: Body::Left(error),
                },
            ),
        }
    }

    /// Answers a chunk of a group that is over.
    pub(super) fn refuse_chunk(
        &self,
        state: &mut State,
        connection: usize,
        name: Name,
        error: FiError,
    ) {
        if !state.connections[connection].state().is_lost() {
            self.say(state, connection, &leave(name, Some(error)), &[]);
        }
    }
}

impl Group {
    /// The other members.
    fn others(&self) -> impl Iterator<Item = (usize, &Member)> {
        let rank = self.rank;
        let members = self.members.iter().enumerate();
        members.filter(move |(index, _)| *index != rank)
    }
}
