#include "tests/simulation/explorer/expansion.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eplb::explorer {

void Model::Expansion::Run(const World& world) {
  for (int run = 0; run < kRuns; ++run) {
    for (int rank = 0; rank < kRanks; ++rank) {
      UpMoves(world, run, rank);
      if (model.ranks_[world.cells[run][rank]].has_process()) {
        RankMoves(world, run, rank);
      }
    }
  }
  DaemonMoves(world);
}

void Model::Expansion::Emit(World world, Step step, std::string violation) {
  visit({.step = std::move(step), .world = world, .violation = std::move(violation)});
}

void Model::Expansion::EmitRank(const World& world, Step step, const RankStep& rank_step) {
  World next = world;
  next.cells[step.run][step.rank] = rank_step.cell;
  for (const HistoryRecord& record : rank_step.log) {
    step.log.push_back({step.run, step.rank, record});
  }
  Emit(next, std::move(step),
       rank_step.old_term ? "a rank was welcomed with a term below one that it has seen" : "");
}

// ---- ranks ----

void Model::Expansion::RankMoves(const World& world, int run, int rank) {
  const uint32_t id = world.cells[run][rank];
  const Cell& cell = model.ranks_[id];
  const auto step = [&](Move move) { return Step{.move = move, .run = run, .rank = rank}; };
  if (model.ranks_.HasNews(cell)) Deliver(world, step(Move::kDeliverDown));
  Connect(world, step(Move::kConnect));
  if (cell.stream == Stream::kOpen && world.left.cuts && world.left.faults > 0) {
    World next = world;
    --next.left.faults;
    EmitRank(next, step(Move::kCut), model.ranks_.Cut(id));
  }
  const bool stands = run == 0 && world.hung;
  if (!stands) Votes(world, step(Move::kEnterVote));
}

void Model::Expansion::Deliver(const World& world, Step step) {
  const uint32_t id = world.cells[step.run][step.rank];
  const size_t waiting = model.ranks_.Waiting(model.ranks_[id]);
  for (int arrival = 0; arrival < kArrivals; ++arrival) {
    step.arrival = static_cast<Arrival>(arrival);
    if (step.arrival == Arrival::kOvertaken && waiting < 2) continue;
    World next = world;
    if (step.arrival != Arrival::kInOrder && !MayDisorder(next)) continue;
    EmitRank(next, step, model.ranks_.DeliverDown(id, step.arrival));
  }
}

void Model::Expansion::Connect(const World& world, Step step) {
  const uint32_t id = world.cells[step.run][step.rank];
  const Cell& cell = model.ranks_[id];
  if (cell.stream == Stream::kAway || cell.stream == Stream::kCut) {
    const uint64_t named = model.cores_.Info(world.core).sessions;
    for (int number = 0;; ++number) {
      const auto session = CoreTable::IdOf({step.run, step.rank, number});
      const bool used = (named >> session & 1) != 0 || std::any_of(cell.old.begin(), cell.old.end(),
                                                                   [number](const OldStream& old) {
                                                                     return old.number == number;
                                                                   });
      if (used) continue;
      EmitRank(world, step, model.ranks_.Connect(id, number));
      if (const uint32_t read = model.ranks_.ReadKeeps(id).cell; read != id) {
        EmitRank(world, step, model.ranks_.Connect(read, number));
      }
      return;
    }
  }
  const bool no_welcome = cell.stream == Stream::kOpen && !cell.welcomed;
  if (no_welcome && cell.up.empty() && cell.down.empty()) {
    step.move = Move::kGiveUpStream;
    EmitRank(world, step, model.ranks_.GiveUpStream(id));
  }
}

void Model::Expansion::Votes(const World& world, Step step) {
  const uint32_t id = world.cells[step.run][step.rank];
  const Cell& cell = model.ranks_[id];
  switch (cell.pc) {
    case Pc::kTrain:
      if (MayEnter(world, step.run, cell)) Enter(world, std::move(step));
      return;
    case Pc::kWaiting:
      // A vote that a rank can never enter fails on the others.
      if (!model.HasEnded(world, step.run)) return;
      step.move = Move::kTakeOutcome;
      EmitRank(world, std::move(step),
               model.ranks_.TakeOutcome(model.ranks_.SetOutcome(id, Pc::kGetEnd).cell));
      return;
    case Pc::kEnded:
      return;
    default:
      step.move = Move::kTakeOutcome;
      EmitRank(world, std::move(step), model.ranks_.TakeOutcome(id));
  }
}

// A vote that every rank enters without being PREPARED changes nothing and is left out. So a rank
// that is not PREPARED enters when another one waits, or in time before it becomes PREPARED: where
// it enters earlier it does the same until then.
bool Model::Expansion::MayEnter(const World& world, int run, const Cell& cell) const {
  if (model.ranks_.MemberOf(cell).prepared() != nullptr) return true;
  for (const uint32_t message : cell.down) {
    if (std::holds_alternative<wire::Propose>(model.messages_.down[message])) return true;
  }
  const auto& cells = world.cells[run];
  return std::any_of(cells.begin(), cells.end(), [this](uint32_t other) {
    const Pc pc = model.ranks_[other].pc;
    return pc == Pc::kWaiting || pc == Pc::kEnded;
  });
}

void Model::Expansion::Enter(const World& world, Step step) {
  const uint32_t id = world.cells[step.run][step.rank];
  const Cell& cell = model.ranks_[id];
  World next = world;
  uint32_t& slot = next.cells[step.run][step.rank];
  if (model.mutant_ == Mutant::kVoteGatedOnReady &&
      model.ranks_.MemberOf(cell).prepared() == nullptr) {
    if (cell.lead >= 2) return;
    step.move = Move::kSkipVote;
    slot = model.ranks_.SkipVote(id).cell;
    Emit(next, std::move(step));
    return;
  }
  slot = model.ranks_.EnterVote(id).cell;
  const auto& cells = next.cells[step.run];
  const bool complete = std::all_of(cells.begin(), cells.end(), [this](uint32_t other) {
    return model.ranks_[other].pc == Pc::kWaiting;
  });
  if (complete) {
    Complete(next, step);
  } else {
    Emit(next, std::move(step));
  }
}

std::string Model::Expansion::CheckVote(const World& world, int run, bool agreed) const {
  const Proposal* first = nullptr;
  const Cell& first_cell = model.ranks_[world.cells[run][0]];
  for (const uint32_t id : world.cells[run]) {
    const Cell& cell = model.ranks_[id];
    if (cell.lead != first_cell.lead) return "I1: ranks vote together after different steps";
    if (model.ranks_.Values(cell)[4] != model.ranks_.Values(first_cell)[4]) {
      return "I1: the ranks of a vote run different placements";
    }
    if (!agreed) continue;
    const Proposal& target = *model.ranks_.Target(cell);
    if (first == nullptr) first = &target;
    if (target.propose.version != first->propose.version ||
        target.propose.digest != first->propose.digest) {
      return absl::StrCat("I5: one vote runs version ", first->propose.version,
                          " on one rank and version ", target.propose.version, " on another");
    }
    // An older run may still run what it was PREPARED for before the newer one owned the job.
    if (target.propose.version <= world.committed && !model.IsOlder(world, run)) {
      return absl::StrCat("I2: version ", target.propose.version, " is committed after version ",
                          world.committed);
    }
  }
  return "";
}

void Model::Expansion::Complete(const World& world, const Step& step) {
  const auto& cells = world.cells[step.run];
  std::array<std::array<int64_t, 6>, kRanks> values;
  std::array<int64_t, 6> minimum;
  minimum.fill(INT64_MAX);
  for (int rank = 0; rank < kRanks; ++rank) {
    values[rank] = model.ranks_.Values(model.ranks_[cells[rank]]);
    for (size_t i = 0; i < minimum.size(); ++i) minimum[i] = std::min(minimum[i], values[rank][i]);
  }
  bool agreed = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    agreed = agreed && model.ranks_.Target(model.ranks_[cells[rank]]) != nullptr &&
             std::equal(minimum.begin(), minimum.begin() + 4, values[rank].begin());
  }
  if (std::string wrong = CheckVote(world, step.run, agreed); !wrong.empty()) {
    Emit(world, step, std::move(wrong));
    return;
  }
  World next = world;
  if (agreed) {
    next.committed =
        std::max(next.committed, model.ranks_.Target(model.ranks_[cells[0]])->propose.version);
  }
  const Pc outcome = agreed ? Pc::kGetApply : Pc::kGetNothing;
  SetOutcomes(next, step, {outcome, outcome, outcome}, agreed ? ": applied" : ": nothing to do");
  if (agreed && world.left.transfers > 0) {
    World failed = world;
    --failed.left.transfers;
    SetOutcomes(failed, step, {Pc::kGetDrop, Pc::kGetDrop, Pc::kGetDrop}, ": a transfer failed");
  }
  if (world.left.unknown == 0) return;
  --next.left.unknown;
  // Those that got the result act on it, the others end. (Where only the first vote's result is
  // lost, no rank gets one from the second.)
  const Pc lost = model.mutant_ == Mutant::kUnknownIsNo && agreed ? Pc::kGetDrop : Pc::kGetEnd;
  for (unsigned got = 0; got < 7; ++got) {
    std::array<Pc, kRanks> outcomes;
    for (int rank = 0; rank < kRanks; ++rank) {
      outcomes[rank] = (got >> rank & 1) != 0 ? outcome : lost;
    }
    SetOutcomes(next, step, outcomes, ": some ranks get no result");
  }
}

void Model::Expansion::SetOutcomes(const World& world, Step step,
                                   const std::array<Pc, kRanks>& outcomes, const char* how) {
  World next = world;
  for (int rank = 0; rank < kRanks; ++rank) {
    uint32_t& slot = next.cells[step.run][rank];
    const bool ready = model.ranks_.Target(model.ranks_[slot]) != nullptr;
    step.log.push_back({step.run, rank, {.kind = HistoryRecord::Kind::kStep}});
    slot = model.ranks_.SetOutcome(slot, outcomes[rank]).cell;
    // Without a PREPARED proposal in it the vote's end changes nothing but this rank's place.
    if (outcomes[rank] == Pc::kGetNothing && !ready) slot = model.ranks_.TakeOutcome(slot).cell;
  }
  step.vote = how;
  Emit(next, std::move(step));
}

}  // namespace eplb::explorer
