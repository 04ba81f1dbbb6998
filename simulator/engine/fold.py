"""Folding: ranks that must do the same at the same time become one lane.

Ranks, groups and links are coloured by what is known of each (hardware, faults, role; capacity), then
refined until all members of a colour have the same colours around them, with the same counts: the
coarsest equitable partition (colour refinement, Weisfeiler and Leman 1968; Berkholz, Bonsma and Grohe,
"Tight Lower and Upper Bounds for the Complexity of Canonical Colour Refinement", 2017). Max-min fair
rates are constant on its classes, so one representative of each class tells what all members do.

What draws private random numbers (noise, loader times that vary) has a colour of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.engine.cast import NO_LINKS, Cast, Group, lane_for
from simulator.engine.colours import (
    Floats,
    Ints,
    Sums,
    Words,
    classes,
    combine,
    distinct,
    key,
    keys,
    rounded,
)
from simulator.engine.setting import Setting
from simulator.faults import Factor, Noise, Pause, Resource, Traffic
from simulator.network.activity import LATENCY_BOUND_BYTES
from simulator.network.collectives import Activity, wire
from simulator.network.slack import never_bind
from simulator.program.instructions import Collective, Send


@dataclass(slots=True)
class Meeting:
    """Groups of one name, and the links that their collectives load.

    `table`: members of each group, shape (groups, members). `ordered`: members differ by position (a
    send from the first to the second). `loads`: (group, link, bytes per byte) of each kind of collective.
    """

    name: str
    table: Ints
    ordered: bool
    loads: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    group_of: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # by rank; -1 none
    colours: Ints = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(slots=True)
class _Colours:
    ranks: Ints
    links: Ints
    meetings: list[Meeting]


def fold(setting: Setting, *, all_links: bool = False) -> Cast:
    """The smallest cast that behaves as all ranks do.

    Links that can hold nothing up do not tell ranks apart and carry nothing in the cast, unless `all_links`
    asks for them (to show their utilisation).
    """
    idle = np.zeros(setting.fabric.n_links, dtype=bool) if all_links else _idle_links(setting)
    colours = _refine(setting, idle)
    return _Quotient(setting, colours, idle).cast()


def _idle_links(setting: Setting) -> NDArray[np.bool_]:
    """Links that never bind, faults considered."""
    idle = never_bind(setting.fabric)
    for effect in setting.effects:
        match effect:
            case Factor(Resource.LINK, targets):
                idle[list(targets)] = False
            case Traffic(links):
                idle[list(links)] = False
    return idle


# ------------------------------------------------------------------------------------ first colours


def rank_words(setting: Setting, *, drawn: bool = True) -> Words:
    """What is known of each rank before anybody meets, as hashes, shape (ranks,).

    `drawn`: with what is private because it is drawn at random.
    """
    ranks = setting.mesh.ranks
    words = combine(keys(setting.stage_of_rank), keys(setting.gpu_of_rank))
    for effect in setting.effects:
        match effect:
            case Factor(resource, targets, windows, factor, worker) if resource is not Resource.LINK:
                words[list(targets)] += key("factor", resource, windows, factor, worker)
            case Pause():
                about = (effect.step, effect.duration_s, effect.position, effect.kind, effect.name)
                words[[effect.rank]] += key("pause", *about)
            case Noise(Resource.LOADER, targets, cv, stream) if cv > 0 and drawn:
                index = np.array(targets, dtype=np.int64)
                words[index] += keys(setting.data_of_rank[index]) ^ key("loader noise", cv, stream)
            case Noise(resource, targets, cv, stream) if cv > 0 and drawn:
                index = np.array(targets, dtype=np.int64)
                words[index] += keys(index) ^ key("noise", resource, cv, stream)
    if drawn and setting.draws_data:
        words = combine(words, keys(setting.data_of_rank))
    assert len(words) == ranks
    return words


def _link_words(setting: Setting) -> Words:
    fabric = setting.fabric
    words = combine(rounded(fabric.capacity_bytes_per_s), rounded(fabric.latency_s))
    for effect in setting.effects:
        match effect:
            case Factor(Resource.LINK, targets, windows, factor, _):
                words[list(targets)] += key("factor", windows, factor)
            case Traffic(links, demand, windows):
                words[list(links)] += key("traffic", demand, windows)
    return words


# -------------------------------------------------------------------------------------- refinement


class _Loads:
    """Bytes of groups on links, both ways round."""

    def __init__(self, group: Ints, link: Ints, load: Floats, groups: int, links: int):
        self._words = rounded(load)
        self._group, self._link = group, link
        self._by_group, self._by_link = Sums(group, groups), Sums(link, links)

    def on_groups(self, links: Words) -> Words:
        """For each group, the multiset of (colour of a link, bytes on it)."""
        return self._by_group(combine(links[self._link], self._words))

    def on_links(self, groups: Words) -> Words:
        """For each link, the multiset of (colour of a group, its bytes)."""
        return self._by_link(combine(groups[self._group], self._words))


def _refine(setting: Setting, idle: NDArray[np.bool_]) -> _Colours:
    meetings = list(_meetings(setting))
    ranks, links = rank_words(setting), _link_words(setting)
    links[idle] = key("never binds")
    loads = [
        [_Loads(*_kept(load, idle), len(meeting.table), len(links)) for load in meeting.loads]
        for meeting in meetings
    ]
    count = 0
    while True:
        groups = [_group_words(*each, ranks, links) for each in zip(meetings, loads, strict=True)]
        found = distinct(ranks) + distinct(links)
        if found == count:
            for meeting, words in zip(meetings, groups, strict=True):
                meeting.colours = classes(words)
            return _Colours(classes(ranks), classes(links), meetings)
        count = found
        around_ranks, around_links = np.zeros_like(ranks), np.zeros_like(links)
        for number, (meeting, words) in enumerate(zip(meetings, groups, strict=True)):
            here = meeting.group_of >= 0
            salted = keys(words ^ key("meeting", number))
            around_ranks[here] += salted[meeting.group_of[here]]
            if meeting.ordered:
                for place in range(meeting.table.shape[1]):
                    around_ranks[meeting.table[:, place]] += key("place", number, place)
            for load in loads[number]:
                around_links += load.on_links(salted)
        ranks, links = combine(ranks, around_ranks), combine(links, around_links)


def _kept(load: tuple[Ints, Ints, Floats], idle: NDArray[np.bool_]) -> tuple[Ints, Ints, Floats]:
    if not idle.any():
        return load
    group, link, bytes_ = load
    keep = ~idle[link]
    return group[keep], link[keep], bytes_[keep]


def _group_words(meeting: Meeting, loads: list[_Loads], ranks: Words, links: Words) -> Words:
    members = ranks[meeting.table]
    if meeting.ordered:
        members = keys(members ^ keys(np.arange(meeting.table.shape[1]))[None, :])
    words = combine(members.sum(axis=1, dtype=np.uint64))
    for load in loads:
        words = combine(words, load.on_groups(links))
    return words


def _meetings(setting: Setting) -> Iterator[Meeting]:
    """Every name under which ranks meet, with the loads of each kind of collective there."""
    mesh, fabric = setting.mesh, setting.fabric
    kinds: dict[str, dict[tuple[str, str], float]] = {}
    sends: dict[tuple[int, int], None] = {}
    for stage, role in enumerate(setting.programs.roles):
        for item in role.body:
            for instruction in getattr(item, "instructions", (item,)):
                if isinstance(instruction, Collective):
                    known = kinds.setdefault(instruction.group, {})
                    which = (instruction.kind, instruction.algorithm)
                    known[which] = max(known.get(which, 0.0), instruction.size_bytes)
                elif isinstance(instruction, Send):
                    sends[stage, instruction.peer] = None
    for name, used in kinds.items():
        meeting = Meeting(name, mesh.groups(name), ordered=False, group_of=mesh.group_of(name))
        for (kind, algorithm), size in used.items():
            if size <= LATENCY_BOUND_BYTES:
                continue
            ranks = tuple(meeting.table[0].tolist())
            chosen = setting.activity(kind, ranks, size, algorithm).algorithm
            meeting.loads.append(wire(fabric, kind, setting.place[meeting.table], algorithm=chosen))
        yield meeting
    for ends in sends:
        yield send_meeting(setting, *ends)


def send_meeting(setting: Setting, source: int, target: int) -> Meeting:
    """All pairs of a rank of stage `source` with the rank of stage `target` it sends to."""
    mesh = setting.mesh
    index = mesh.axes.index("pp")
    stride = int(np.prod(mesh.sizes[:index], dtype=np.int64))
    first = np.flatnonzero(setting.stage_of_rank == source)
    table = np.column_stack([first, first + (target - source) * stride])
    group_of = np.full(mesh.ranks, -1)
    group_of[table] = np.arange(len(table))[:, None]
    loads = wire(setting.fabric, "send-recv", setting.place[table], algorithm="auto")
    return Meeting(f"send {source}-{target}", table, True, [loads], group_of)


# ---------------------------------------------------------------------------------------- quotient


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """Bare bytes per byte of one kind of collective of a class of groups.

    `per_byte`: on each of `links` (classes), of all groups of the class together; `own`: of the first
    group, on each of its links in order of number. `tier`, `own_tier`: of those links.
    """

    links: Ints
    per_byte: Floats
    tier: Ints
    own: Floats
    own_tier: Ints


class _Quotient:
    """The cast of classes."""

    def __init__(self, setting: Setting, colours: _Colours, idle: NDArray[np.bool_]):
        self._setting = setting
        self._idle = idle
        self._colours = colours
        self._meetings = {meeting.name: meeting for meeting in colours.meetings}
        self._loads: dict[tuple[str, int, str, str], _Load] = {}
        self._first_rank = np.unique(colours.ranks, return_index=True)[1]
        order = np.argsort(self._first_rank)  # lanes in order of their first rank
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self.lane_of_rank: Ints = place[colours.ranks]
        self.representatives: Ints = self._first_rank[order]

    def cast(self) -> Cast:
        setting = self._setting
        counts = np.bincount(self.lane_of_rank)
        lanes = tuple(
            lane_for(setting, rank, count)
            for rank, count in zip(self.representatives.tolist(), counts.tolist(), strict=True)
        )
        first_link = np.unique(self._colours.links, return_index=True)[1]
        return Cast(
            setting=setting,
            lanes=lanes,
            lane_of_rank=self.lane_of_rank,
            groups={
                meeting.name: self._groups(meeting)
                for meeting in self._colours.meetings
                if not meeting.ordered
            },
            capacity=setting.fabric.capacity_bytes_per_s[first_link],
            wire=self._wire,
            link_class=self._colours.links,
            meta={"lanes": len(lanes), "link_classes": len(first_link)},
        )

    def _groups(self, meeting: Meeting) -> tuple[Group, ...]:
        made: dict[int, Group] = {}
        result = []
        first = np.unique(meeting.colours, return_index=True)[1]
        for rank in self.representatives.tolist():
            colour = int(meeting.colours[meeting.group_of[rank]])
            if colour not in made:
                members = meeting.table[first[colour]]
                lanes = np.unique(self.lane_of_rank[members])
                made[colour] = Group(meeting.name, colour, tuple(lanes.tolist()), tuple(members.tolist()))
            result.append(made[colour])
        return tuple(result)

    def _wire(self, activity: Activity, name: str, rank: int) -> tuple[Ints, Floats]:
        """Links (classes) and bytes of all activities of the class that `rank`'s belongs to."""
        if activity.size_bytes <= LATENCY_BOUND_BYTES:
            return NO_LINKS
        meeting = self._meetings[name]
        colour = int(meeting.colours[meeting.group_of[rank]])
        key = (name, colour, activity.kind, activity.algorithm)
        if key not in self._loads:
            self._loads[key] = self._load(meeting, colour, activity)
        load = self._loads[key]
        overhead = np.ones(len(self._setting.fabric.tiers))
        if activity.size_bytes > 0:  # what the protocol adds, by kind of link
            overhead[load.own_tier] = activity.bytes / (load.own * activity.size_bytes)
        return load.links, load.per_byte * activity.size_bytes * overhead[load.tier]

    def _load(self, meeting: Meeting, colour: int, activity: Activity) -> _Load:
        setting = self._setting
        fabric = setting.fabric
        members = np.flatnonzero(meeting.colours == colour)
        groups = setting.place[meeting.table[members]]
        group, link, load = wire(fabric, activity.kind, groups, algorithm=activity.algorithm)
        count = np.bincount(self._colours.links)
        classes_ = self._colours.links[link]
        total = np.bincount(classes_, weights=load, minlength=len(count))
        total[self._colours.links[self._idle]] = 0.0
        used = np.flatnonzero(total)
        tier = np.zeros(len(count), dtype=np.int64)
        tier[classes_] = fabric.tier[link]
        first = group == 0
        own_links, place = np.unique(link[first], return_inverse=True)
        return _Load(
            links=used,
            per_byte=total[used] / count[used],
            tier=tier[used],
            own=np.bincount(place, weights=load[first]).astype(np.float64),
            own_tier=fabric.tier[own_links].astype(np.int64),
        )

    @cached_property
    def size(self) -> int:
        return len(self.representatives)
