//! Who gets a device, in random orders of events with caches that lag behind.

use super::*;
use proptest::prelude::*;

/// Instances that want one device. Each is reconciled with a cache that shows its own last write, and maybe not more.
pub(super) struct World {
    /// What the API server has; the first three run and plug, the next three run and move a volume there, and the others start
    /// with the device.
    pub(super) all: Vec<Option<VirtualMachineInstance>>,
    /// Every state that a cache may show, and the state with the last write of each instance.
    history: Vec<Vec<Option<VirtualMachineInstance>>>,
    written: [usize; INSTANCES],
    pub(super) open: [bool; INSTANCES],
}

pub(super) const INSTANCES: usize = 10;
const PLUGS: usize = 3;
/// Instances up to this one plug or move.
const MOVES: usize = 6;
/// Instances that only read: one that plugs, and two that start with the device.
const READERS: [usize; 3] = [PLUGS - 1, INSTANCES - 2, INSTANCES - 1];
/// The oldest state that a cache shows.
const LAG: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Comes(usize),
    Reconciled {
        who: usize,
        lag: usize,
    },
    Goes(usize),
    /// A machine takes the move of its volume back.
    Stays(usize),
}

pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        2 => (0..INSTANCES).prop_map(Event::Comes),
        6 => (0..INSTANCES, 0..=LAG).prop_map(|(who, lag)| Event::Reconciled { who, lag }),
        1 => (0..INSTANCES).prop_map(Event::Goes),
        1 => (PLUGS..MOVES).prop_map(Event::Stays),
    ];
    proptest::collection::vec(event, 1..80)
}

impl World {
    pub(super) fn new() -> Self {
        let all = vec![None; INSTANCES];
        World { history: vec![all.clone()], all, written: [0; INSTANCES], open: [false; INSTANCES] }
    }

    fn write(&mut self, who: usize, vmi: Option<VirtualMachineInstance>) {
        self.all[who] = vmi;
        self.history.push(self.all.clone());
        self.written[who] = self.history.len() - 1;
    }

    /// What a cache shows to the one who reconciles that instance.
    fn seen(&self, who: usize, lag: usize) -> Vec<Option<VirtualMachineInstance>> {
        let last = self.history.len() - 1;
        self.history[last.saturating_sub(lag).max(self.written[who])].clone()
    }

    fn reconcile(&mut self, who: usize, lag: usize) {
        let mut seen = self.seen(who, lag);
        let Some(own) = seen[who].take().filter(|_| !self.open[who]) else { return };
        let others = seen.into_iter().flatten();
        if who >= MOVES {
            return self.start(who, own, others.collect());
        }
        if who >= PLUGS {
            return self.give_way_or_move(who, own, others.collect());
        }
        let access = Access::of(&own.spec, "data", own.spec.volumes[0].claim().unwrap());
        let device = Opened { claim: "data", access };
        let reserved = is_reserved(&own, "data", &device);
        let is_free = withheld(&own, "data", device, others).is_none();
        match (is_free, reserved) {
            (true, true) => {
                self.open(who);
                self.write(who, Some(with_entry(own, "Ready", "VolumeReady")));
            }
            (true, false) => self.write(who, Some(with_entry(own, "Bound", "PVCNotReady"))),
            (false, _) => self.write(who, Some(with_entry(own, "Bound", REASON_CLAIM_IN_USE))),
        }
    }

    /// An instance moves its volume, gives way, or takes that back. The hand-over applies only to the version that was seen,
    /// which is the latest one.
    fn give_way_or_move(
        &mut self,
        who: usize,
        own: VirtualMachineInstance,
        others: Vec<VirtualMachineInstance>,
    ) {
        if held(&own, others.clone()).is_none() {
            return self.open(who);
        }
        let told = giving_way(own.clone(), goes_first(&own, others).as_deref());
        if told != own {
            self.write(who, Some(told));
        }
    }

    /// An instance starts, or says why it does not.
    fn start(&mut self, who: usize, own: VirtualMachineInstance, others: Vec<VirtualMachineInstance>) {
        let devices: Vec<Opened<'_>> = opened(&own).collect();
        let Some(why) = taken(&own, &devices, others) else {
            self.open(who);
            let mut starts = own.clone();
            starts.status.as_mut().unwrap().phase = Some("Scheduling".to_owned());
            return self.write(who, Some(starts));
        };
        let waits = told(own.clone(), why);
        if waits != own {
            self.write(who, Some(waits));
        }
    }

    fn comes(&mut self, who: usize) {
        let (phase, come) = match who {
            ..PLUGS => ("Running", true),
            // One volume was plugged in, the others were there from the start.
            PLUGS..MOVES => ("Running", who == PLUGS),
            _ => ("Pending", false),
        };
        // Those that run came in the order of their numbers, before the others.
        let second = if who < MOVES { who } else { self.history.len() };
        let disk = if READERS.contains(&who) { read() } else { own() };
        let vmi = vmi(&who.to_string(), phase, u32::try_from(second).unwrap(), &disk, come);
        if !(PLUGS..MOVES).contains(&who) {
            return self.write(who, Some(vmi));
        }
        // A volume does not move to a claim that an instance of the cache names.
        if self.seen(who, LAG).iter().all(Option::is_none) {
            self.write(who, Some(moving(vmi, "Block")));
        }
    }

    fn open(&mut self, who: usize) {
        let reads = |who: usize| READERS.contains(&who);
        let mut others = (0..INSTANCES).filter(|other| self.open[*other]);
        let alone = others.all(|other| reads(who) && reads(other));
        assert!(alone, "{who} opens what another one has: {:?}", self.open);
        self.open[who] = true;
    }

    pub(super) fn step(&mut self, event: Event) {
        match event {
            Event::Comes(who) if self.all[who].is_none() => self.comes(who),
            Event::Stays(who) if self.all[who].is_some() && !self.open[who] => self.write(who, None),
            Event::Goes(who) if self.open[who] => {
                self.open[who] = false;
                self.write(who, None);
            }
            Event::Reconciled { who, lag } => self.reconcile(who, lag),
            Event::Comes(_) | Event::Goes(_) | Event::Stays(_) => {}
        }
    }

    /// All reconcile often, with a cache that shows everything.
    pub(super) fn settle(&mut self) {
        for who in (0..INSTANCES).cycle().take(6 * INSTANCES) {
            self.step(Event::Reconciled { who, lag: 0 });
        }
    }
}
