#include "tests/simulation/explorer/rank_table.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tests/simulation/explorer/bytes.h"
#include "tests/simulation/explorer/member_peer.h"

namespace eplb::explorer {
namespace {

void AddQueue(const MessageQueue& queue, Bytes& bytes) {
  bytes.Add(static_cast<int64_t>(queue.size()));
  for (const uint32_t message : queue) bytes.Add(int64_t{message});
}

// Removes what arrives from the front of a queue.
std::optional<uint32_t> Take(MessageQueue& queue, Arrival arrival) {
  const auto position = queue.begin() + (arrival == Arrival::kOvertaken ? 1 : 0);
  const uint32_t message = *position;
  if (arrival != Arrival::kTwice) queue.erase(position);
  return arrival == Arrival::kLost ? std::nullopt : std::optional<uint32_t>(message);
}

HistoryRecord Record(HistoryRecord::Kind kind, const Proposal& proposal, bool passed = false) {
  HistoryRecord record;
  record.kind = kind;
  record.version = proposal.propose.version;
  record.digest = proposal.propose.digest;
  record.passed = passed;
  return record;
}

}  // namespace

RankTable::RankTable(Messages* messages, Mutant mutant) : messages_(*messages), mutant_(mutant) {
  Keep(Cell{});
}

uint32_t RankTable::Keep(Cell cell) {
  Bytes bytes;
  bytes.Add(int64_t{cell.member});
  bytes.Add(static_cast<int64_t>(cell.pc));
  bytes.Add(static_cast<int64_t>(cell.stream));
  bytes.Add(int64_t{cell.welcomed});
  bytes.Add(int64_t{cell.number});
  bytes.Add(int64_t{cell.lead});
  AddQueue(cell.up, bytes);
  AddQueue(cell.down, bytes);
  for (const OldStream& old : cell.old) {
    bytes.Add(int64_t{old.number} * 4 + (old.orderly ? 1 : 0) + (old.is_older ? 2 : 0));
    AddQueue(old.up, bytes);
  }
  return cells_.Add(std::move(bytes).Take(), std::move(cell));
}

uint32_t RankTable::Keep(Member member) {
  std::string bytes = MemberPeer::BytesOf(member);
  return members_.Add(std::move(bytes), std::move(member));
}

uint32_t RankTable::Run(int64_t version, const Digest& digest, int64_t seen_term,
                        int64_t seen_version) {
  Placement placement = StartPlacement();
  // Ranks run the start placement or a result of `Better`.
  for (int bits = 0; bits < 4 && DigestOf(placement) != digest; ++bits) {
    IndexMatrix slots = StartPlacement().physical_to_logical_map();
    for (int layer = 0; layer < 2; ++layer) {
      if ((bits >> layer & 1) != 0) std::swap(slots(layer, 1), slots(layer, 2));
    }
    placement = Placement::FromSlots(SmallTopology(), slots).value();
  }
  Member member(SmallMemberOptions(),
                {version, digest, std::make_shared<const Placement>(placement)});
  if (seen_term > 0) (void)member.OnDown(wire::Welcome{seen_term, ""});
  // A proposal on a base that no rank runs leaves only its version behind.
  if (seen_version > version) {
    (void)member.OnDown(
        wire::Propose{.term = seen_term, .version = seen_version, .base_version = version + 1});
  }
  Cell cell;
  cell.member = Keep(std::move(member));
  return Keep(std::move(cell));
}

const RankStep& RankTable::Do(uint32_t cell, Action action, int argument, Change change) {
  const uint64_t key = (uint64_t{cell} << 16) | (static_cast<uint64_t>(action) << 8) |
                       static_cast<uint64_t>(argument);
  const auto [found, is_new] = step_ids_.try_emplace(key, static_cast<uint32_t>(steps_.size()));
  if (!is_new) return steps_[found->second];
  RankStep step;
  Cell changed = cells_[cell];
  (this->*change)(changed, argument, step);
  if (changed.stream == Stream::kCut && changed.down.empty()) changed.stream = Stream::kAway;
  if (changed.stream == Stream::kAway || changed.stream == Stream::kDone) changed.welcomed = false;
  step.cell = Keep(std::move(changed));
  return steps_.emplace_back(std::move(step));
}

const RankStep& RankTable::DeliverDown(uint32_t cell, Arrival arrival) {
  return Do(cell, Action::kDeliver, static_cast<int>(arrival), &RankTable::DoDeliver);
}
const RankStep& RankTable::Connect(uint32_t cell, int number) {
  return Do(cell, Action::kConnect, number, &RankTable::DoConnect);
}
const RankStep& RankTable::ReadKeeps(uint32_t cell) {
  return Do(cell, Action::kReadKeeps, 0, &RankTable::DoReadKeeps);
}
const RankStep& RankTable::GiveUpStream(uint32_t cell) {
  return Do(cell, Action::kGiveUp, 0, &RankTable::DoGiveUp);
}
const RankStep& RankTable::EnterVote(uint32_t cell) {
  return Do(cell, Action::kEnter, 0, &RankTable::DoEnter);
}
const RankStep& RankTable::SkipVote(uint32_t cell) {
  return Do(cell, Action::kSkip, 0, &RankTable::DoSkip);
}
const RankStep& RankTable::TakeOutcome(uint32_t cell) {
  return Do(cell, Action::kTake, 0, &RankTable::DoTake);
}
const RankStep& RankTable::SetOutcome(uint32_t cell, Pc outcome) {
  return Do(cell, Action::kOutcome, static_cast<int>(outcome), &RankTable::DoOutcome);
}
const RankStep& RankTable::DropOld(uint32_t cell, int index) {
  return Do(cell, Action::kDropOld, index, &RankTable::DoDropOld);
}
const RankStep& RankTable::CloseByDaemon(uint32_t cell, int number) {
  return Do(cell, Action::kClose, number, &RankTable::DoClose);
}
const RankStep& RankTable::LoseDaemon(uint32_t cell) {
  return Do(cell, Action::kLose, 0, &RankTable::DoLose);
}
const RankStep& RankTable::Cut(uint32_t cell) {
  return Do(cell, Action::kCut, 0, &RankTable::DoCut);
}
const RankStep& RankTable::Kill(uint32_t cell) {
  return Do(cell, Action::kKill, 0, &RankTable::DoKill);
}

const UpStep& RankTable::TakeUp(uint32_t cell, int stream, Arrival arrival) {
  const uint64_t key = (uint64_t{cell} << 16) | (static_cast<uint64_t>(stream + 1) << 8) |
                       static_cast<uint64_t>(arrival);
  const auto [found, is_new] = up_ids_.try_emplace(key, static_cast<uint32_t>(ups_.size()));
  if (!is_new) return ups_[found->second];
  Cell changed = cells_[cell];
  UpStep step;
  step.number = stream < 0 ? changed.number : changed.old[stream].number;
  step.message = Take(stream < 0 ? changed.up : changed.old[stream].up, arrival);
  if (step.message) Number(changed, stream, *step.message);
  step.cell = Keep(std::move(changed));
  return ups_.emplace_back(std::move(step));
}

// A Hello that is heard makes the streams before its own older ones.
void RankTable::Number(Cell& cell, int stream, uint32_t& message) {
  const auto* hello = std::get_if<wire::Hello>(&messages_.up[message]);
  if (hello == nullptr) return;
  if (stream >= 0 && cell.old[stream].is_older) {
    wire::Hello older = *hello;
    older.session_number = kOlderSession;
    message = messages_.Add(std::move(older));
    return;
  }
  const auto first_newer = stream < 0 ? cell.old.end() : cell.old.begin() + stream;
  for (auto old = cell.old.begin(); old != first_newer; ++old) {
    old->is_older = std::any_of(old->up.begin(), old->up.end(), [this](uint32_t id) {
      return std::holds_alternative<wire::Hello>(messages_.up[id]);
    });
  }
}

const RankStep& RankTable::PushDown(uint32_t cell, int number, uint32_t message) {
  const uint64_t key =
      (uint64_t{cell} << 32) | (uint64_t{message} << 8) | static_cast<uint64_t>(number);
  const auto [found, is_new] = push_ids_.try_emplace(key, static_cast<uint32_t>(steps_.size()));
  if (!is_new) return steps_[found->second];
  Cell changed = cells_[cell];
  if (changed.stream == Stream::kOpen && changed.number == number) {
    // The last of several Keeps in a row counts.
    const bool again = !changed.down.empty() && IsKeep(changed.down.back()) && IsKeep(message);
    if (again) changed.down.pop_back();
    changed.down.push_back(message);
  }
  RankStep step;
  step.cell = Keep(std::move(changed));
  return steps_.emplace_back(std::move(step));
}

bool RankTable::IsKeep(uint32_t message) const {
  return std::holds_alternative<wire::Keep>(messages_.down[message]);
}

size_t RankTable::Waiting(const Cell& cell) const {
  const auto news = std::find_if(cell.down.begin(), cell.down.end(),
                                 [this](uint32_t message) { return !IsKeep(message); });
  return static_cast<size_t>(cell.down.end() - news);
}

bool RankTable::CarriesQuarantine(const Cell& cell, int run) const {
  const std::optional<wire::JobMemory>& memory = MemberPeer::Kept(MemberOf(cell)).memory.value;
  return memory && !memory->quarantine.empty() && memory->run_id == RunName(run);
}

void RankTable::DoReadKeeps(Cell& cell, int, RankStep& step) {
  while (!cell.down.empty() && IsKeep(cell.down.front())) {
    OnDown(cell, messages_.down[cell.down.front()], step);
    cell.down.erase(cell.down.begin());
  }
}

void RankTable::DoDeliver(Cell& cell, int arrival, RankStep& step) {
  if (cell.welcomed) DoReadKeeps(cell, 0, step);
  const std::optional<uint32_t> id = Take(cell.down, static_cast<Arrival>(arrival));
  if (!id) return;
  const wire::DownMessage& message = messages_.down[*id];
  const bool is_welcome = std::holds_alternative<wire::Welcome>(message);
  if (!is_welcome && !cell.welcomed) {  // not understood, see client/session/connection.cc
    if (cell.stream == Stream::kOpen) {
      DoGiveUp(cell, 0, step);
    } else {
      cell.down.clear();
    }
    return;
  }
  if (is_welcome) {
    const int64_t term = std::get<wire::Welcome>(message).term;
    step.old_term = term < MemberPeer::HighestTerm(MemberOf(cell));
    cell.welcomed = true;
  }
  OnDown(cell, message, step);
  if (is_welcome && MemberOf(cell).ended()) SayGoodbye(cell);
}

void RankTable::OnDown(Cell& cell, const wire::DownMessage& message, RankStep& step) {
  Member member = MemberOf(cell);
  const bool was_ready = member.prepared() != nullptr;
  std::vector<wire::UpMessage> answers = member.OnDown(message);
  if (!was_ready && member.prepared() != nullptr) {
    step.log.push_back(Record(HistoryRecord::Kind::kPrepared, *member.prepared()));
  }
  cell.member = Keep(std::move(member));
  Say(cell, std::move(answers));
}

void RankTable::Say(Cell& cell, std::vector<wire::UpMessage> messages) {
  if (cell.stream != Stream::kOpen) return;  // Connect drops what waits: Hello says it all
  for (wire::UpMessage& message : messages) cell.up.push_back(messages_.Add(std::move(message)));
}

// The last message; then the stream ends in order.
void RankTable::SayGoodbye(Cell& cell) {
  if (cell.stream != Stream::kOpen || !cell.welcomed) return;
  Say(cell, {wire::Goodbye{.failed = true}});
  cell.old.push_back({.number = cell.number, .orderly = true, .up = std::move(cell.up)});
  cell.up.clear();
  cell.down.clear();
  cell.number = 0;
  cell.stream = Stream::kDone;
}

void RankTable::DoConnect(Cell& cell, int number, RankStep&) {
  cell.stream = Stream::kOpen;
  cell.welcomed = false;
  cell.number = number;
  cell.up.clear();
  cell.down.clear();
  wire::Hello hello = MemberOf(cell).MakeHello();
  hello.session_number = kNewestSession;
  Say(cell, {std::move(hello)});
}

void RankTable::DoGiveUp(Cell& cell, int, RankStep&) {
  cell.old.push_back({.number = cell.number, .up = std::move(cell.up)});
  cell.up.clear();
  cell.down.clear();
  cell.number = 0;
  cell.welcomed = false;
  cell.stream = Stream::kAway;
}

void RankTable::DoEnter(Cell& cell, int, RankStep&) {
  cell.pc = Pc::kWaiting;
  if (mutant_ == Mutant::kNoSnapshot) return;  // enters when the result is there
  Member member = MemberOf(cell);
  (void)member.Enter();
  cell.member = Keep(std::move(member));
}

void RankTable::DoSkip(Cell& cell, int, RankStep&) { ++cell.lead; }

std::array<int64_t, 6> RankTable::Values(const Cell& cell) const {
  Member member = MemberOf(cell);
  std::array<int64_t, 6> values =
      mutant_ == Mutant::kNoSnapshot ? member.Enter().values : MemberPeer::Frozen(member).values;
  if (mutant_ == Mutant::kVoteNotBoundToVersion) {
    const int64_t ready = values[0] != 0 ? 1 : 0;
    values = {ready, -ready, ready, -ready, values[4], values[5]};
  }
  return values;
}

const Proposal* RankTable::Target(const Cell& cell) const {
  const Member& member = MemberOf(cell);
  return mutant_ == Mutant::kNoSnapshot ? member.prepared().get()
                                        : MemberPeer::Frozen(member).proposal.get();
}

int64_t RankTable::HighestVersion(const Cell& cell) const {
  return MemberPeer::HighestVersion(MemberOf(cell));
}

// The result of the first vote is known; of the second too when there is one. Between Decide that
// runs the chunk and the second vote's result the member does not change, so both come at once.
void RankTable::DoOutcome(Cell& cell, int outcome, RankStep&) {
  cell.pc = static_cast<Pc>(outcome);
}

void RankTable::DoTake(Cell& cell, int, RankStep& step) {
  using RecordKind = HistoryRecord::Kind;
  Member member = MemberOf(cell);
  if (mutant_ == Mutant::kNoSnapshot) (void)member.Enter();
  const VoteSnapshot frozen = MemberPeer::Frozen(member);
  const std::shared_ptr<const Proposal> target = frozen.proposal;
  std::vector<wire::UpMessage> messages;
  const Pc outcome = cell.pc;
  cell.pc = Pc::kTrain;
  if (outcome == Pc::kGetEnd) {
    (void)member.OnEnded("", {});
    cell.pc = Pc::kEnded;
    step.log.push_back({.kind = RecordKind::kStop});
  } else if (outcome == Pc::kGetNothing || target == nullptr) {
    std::array<int64_t, 6> minimum = frozen.values;
    minimum[0] = std::min<int64_t>(minimum[0], 0);  // some rank was not PREPARED for it
    minimum[1] = -int64_t{1} << 62;
    (void)member.Decide(minimum, messages);
    if (target != nullptr) step.log.push_back(Record(RecordKind::kVote, *target, false));
  } else {
    (void)member.Decide(frozen.values, messages);
    step.log.push_back(Record(RecordKind::kVote, *target, true));
    member.OnStep(member.step() + 1);
    const bool apply = outcome == Pc::kGetApply;
    messages.push_back(apply ? member.OnApplied(0, 0) : member.OnDropped("no"));
    step.log.push_back(Record(apply ? RecordKind::kCommit : RecordKind::kDrop, *target));
  }
  cell.member = Keep(std::move(member));
  Say(cell, std::move(messages));
  if (cell.pc == Pc::kEnded) SayGoodbye(cell);
}

void RankTable::DoDropOld(Cell& cell, int index, RankStep&) {
  cell.old.erase(cell.old.begin() + index);
}

// After a Close nothing more of a stream is handed in.
void RankTable::DoClose(Cell& cell, int number, RankStep&) {
  if (cell.stream == Stream::kOpen && cell.number == number) {
    cell.stream = Stream::kCut;
    cell.number = 0;
    cell.up.clear();
    return;
  }
  std::erase_if(cell.old, [number](const OldStream& old) { return old.number == number; });
}

void RankTable::DoLose(Cell& cell, int, RankStep&) {
  cell.old.clear();
  if (cell.stream != Stream::kOpen) return;
  cell.stream = Stream::kCut;
  cell.number = 0;
  cell.up.clear();
}

void RankTable::DoCut(Cell& cell, int, RankStep&) {
  cell.old.push_back({.number = cell.number, .up = std::move(cell.up)});
  cell.up.clear();
  cell.number = 0;
  cell.stream = Stream::kCut;
}

void RankTable::DoKill(Cell& cell, int, RankStep&) {
  for (OldStream& old : cell.old) old.orderly = false;
  if (cell.stream == Stream::kOpen)
    cell.old.push_back({.number = cell.number, .up = std::move(cell.up)});
  Cell dead;
  dead.old = std::move(cell.old);
  cell = std::move(dead);
}

}  // namespace eplb::explorer
