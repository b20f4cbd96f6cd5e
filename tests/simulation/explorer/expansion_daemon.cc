// What the daemon does, and what is done to it and to the job as a whole.
#include <algorithm>
#include <utility>

#include "tests/simulation/explorer/expansion.h"

namespace eplb::explorer {

// ---- daemon ----

void Model::Expansion::UpMoves(const World& world, int incarnation, int rank) {
  const Cell& cell = model.ranks_[world.cells[incarnation][rank]];
  Step step{.move = Move::kUp, .incarnation = incarnation, .rank = rank};
  if (!cell.up.empty()) Hear(world, step);
  for (size_t index = 0; index < cell.old.size(); ++index) {
    const OldStream& old = cell.old[index];
    step.stream = static_cast<int>(index);
    step.move = Move::kUp;
    if (!old.up.empty()) Hear(world, step);
    step.move = Move::kOldEnds;
    if (old.up.empty() || !old.orderly) OldEnds(world, step);
  }
}

void Model::Expansion::Hear(const World& world, Step step) {
  const uint32_t id = world.cells[step.incarnation][step.rank];
  const Cell& cell = model.ranks_[id];
  const size_t waiting = step.stream < 0 ? cell.up.size() : cell.old[step.stream].up.size();
  for (int arrival = 0; arrival < kArrivals; ++arrival) {
    step.arrival = static_cast<Arrival>(arrival);
    if (step.arrival == Arrival::kOvertaken && waiting < 2) continue;
    World next = world;
    if (step.arrival != Arrival::kInOrder && !MayDisorder(next)) continue;
    const UpStep& taken = model.ranks_.TakeUp(id, step.stream, step.arrival);
    next.cells[step.incarnation][step.rank] = taken.cell;
    if (!taken.message) {
      Emit(next, step);
      continue;
    }
    const SessionName session{step.incarnation, step.rank, taken.number};
    const Turned& turned = model.cores_.OnMessage(next.core, session, *taken.message);
    if (turned.asks_for_body) {
      TurnInEveryOrder(next, session, *taken.message, step);
    } else if (model.check_symmetry && !IsSymmetric(next, turned, session, *taken.message)) {
      Emit(next, step, "the core treats ranks differently by their numbers");
    } else {
      Turn(next, turned, step);
    }
  }
}

bool Model::Expansion::IsSymmetric(const World& world, const Turned& turned, SessionName session,
                                   uint32_t message) const {
  for (int order = 1; order < kPermutations; ++order) {
    std::array<int, kIncarnations> orders{};
    orders[session.incarnation] = order;
    SessionName there = session;
    there.rank = kAllPermutations[order][session.rank];
    const uint32_t renamed = model.cores_.Renamed(world.core, orders[0], orders[1]);
    const uint32_t after = model.cores_.OnMessage(renamed, there, message).core;
    if (after != model.cores_.Renamed(turned.core, orders[0], orders[1])) return false;
  }
  return true;
}

void Model::Expansion::TurnInEveryOrder(const World& world, SessionName session, uint32_t message,
                                        Step step) {
  for (int order = 0; order < kPermutations; ++order) {
    const Permutation& to = kAllPermutations[order];
    World renamed = world;
    std::array<int, kIncarnations> orders{};
    orders[session.incarnation] = order;
    renamed.core = model.cores_.Renamed(world.core, orders[0], orders[1]);
    for (int rank = 0; rank < kRanks; ++rank) {
      renamed.cells[session.incarnation][to[rank]] = world.cells[session.incarnation][rank];
    }
    SessionName there = session;
    there.rank = to[session.rank];
    const Turned& turned = model.cores_.OnMessage(renamed.core, there, message);
    Expansion in_order{model, [this, orders](Successor successor) {
                         successor.permutation = orders;
                         visit(std::move(successor));
                       }};
    in_order.Turn(renamed, turned, step);
  }
}

void Model::Expansion::OldEnds(const World& world, Step step) {
  const uint32_t id = world.cells[step.incarnation][step.rank];
  const int number = model.ranks_[id].old[step.stream].number;
  World next = world;
  next.cells[step.incarnation][step.rank] = model.ranks_.DropOld(id, step.stream).cell;
  Turn(next, model.cores_.OnClosed(next.core, {step.incarnation, step.rank, number}), step);
}

// Executes one decision. A crash is tried after all of its effects, and before each write that has
// an effect before it: a message that was sent just before the crash may still be lost with its
// stream, so a crash between two messages leads nowhere else. A crash between two decisions is one
// after the first: what ranks do meanwhile they can do after it as well.
void Model::Expansion::Turn(const World& world, const Turned& turned, Step step) {
  const int64_t proposed = model.cores_.Info(world.core).proposed;
  const int64_t proposes = model.cores_.Info(turned.core).proposed;
  World next = world;
  next.core = turned.core;
  if (proposes != 0 && proposes != proposed) --next.left.chunks;
  std::vector<CoreEffect> reordered;
  const auto is_write = [](const CoreEffect& effect) {
    return effect.kind == CoreEffect::Kind::kStore || effect.kind == CoreEffect::Kind::kStoreTerm;
  };
  const auto is_job = [](const CoreEffect& effect) {
    return effect.kind == CoreEffect::Kind::kStore;
  };
  if (model.mutant_ == Mutant::kSentBeforeStored) {
    reordered = turned.effects;
    std::stable_partition(reordered.begin(), reordered.end(),
                          [&](const CoreEffect& effect) { return !is_job(effect); });
  }
  const std::vector<CoreEffect>& effects = reordered.empty() ? turned.effects : reordered;
  for (size_t i = 0; i < effects.size(); ++i) {
    if (i > 0 && is_write(effects[i]) && world.left.crashes > 0) {
      step.crashed_before = static_cast<int>(i);
      Crash(next, step);
    }
    if (std::string wrong = Execute(next, effects[i]); !wrong.empty()) {
      step.crashed_before = -1;
      Emit(next, std::move(step), std::move(wrong));
      return;
    }
  }
  step.crashed_before = static_cast<int>(effects.size());
  if (world.left.crashes > 0) Crash(next, step);
  step.crashed_before = -1;
  Emit(next, std::move(step));
}

// Returns what is wrong with it, or nothing.
std::string Model::Expansion::Execute(World& world, const CoreEffect& effect) const {
  Stored stored = model.stores_[world.stored];
  uint32_t& cell = world.cells[effect.session.incarnation][effect.session.rank];
  switch (effect.kind) {
    case CoreEffect::Kind::kSend: {
      const wire::DownMessage& message = model.messages_.down[effect.message];
      const auto* propose = std::get_if<wire::Propose>(&message);
      const StoredJob& job = model.messages_.jobs[stored.job];
      if (propose != nullptr && (!job || propose->term > std::max(stored.term, job->memory.term) ||
                                 job->next_version <= propose->version)) {
        return "I6: a version was proposed before it was stored";
      }
      cell = model.ranks_.PushDown(cell, effect.session.number, effect.message).cell;
      return "";
    }
    case CoreEffect::Kind::kClose:
      cell = model.ranks_.CloseByDaemon(cell, effect.session.number).cell;
      return "";
    case CoreEffect::Kind::kStore:
      stored.job = effect.job;
      break;
    case CoreEffect::Kind::kStoreTerm:
      stored.term = effect.term;
      break;
  }
  world.stored = model.Keep(stored);
  return "";
}

// The daemon is killed and starts again from what was stored, before any rank comes back.
void Model::Expansion::Crash(World world, Step step) {
  --world.left.crashes;
  for (auto& cells : world.cells) {
    for (uint32_t& cell : cells) cell = model.ranks_.LoseDaemon(cell).cell;
  }
  Stored stored = model.stores_[world.stored];
  world.core = model.cores_.Start(stored);
  stored.term = model.cores_.Info(world.core).term;
  world.stored = model.Keep(stored);
  Emit(world, std::move(step));
}

// ---- the rest ----

void Model::Expansion::DaemonMoves(const World& world) {
  const CoreInfo& info = model.cores_.Info(world.core);
  const int chunks = world.left.chunks;
  if (info.phase == core::Phase::kIdle && info.all_connected && info.live && chunks > 0 &&
      Better(*info.known->placement, chunks)) {
    Turn(world, model.cores_.On(world.core, CoreEvent::kReport), {.move = Move::kReport});
  }
  if (info.phase == core::Phase::kSolving) {
    Turn(world, model.cores_.On(world.core, CoreEvent::kSolved, chunks), {.move = Move::kSolved});
  }
  World hurried = world;
  --hurried.left.retracts;
  const bool in_doubt =
      info.phase == core::Phase::kPreparing || info.phase == core::Phase::kResolving;
  if (model.IsStill(world)) {
    // A deadline is far longer than a message needs: where nothing is under way it passes for free.
    if (info.has_job && info.phase != core::Phase::kIdle && !model.IsQuarantined(world)) {
      Turn(world, model.cores_.On(world.core, CoreEvent::kDeadlines), {.move = Move::kDeadlines});
    }
  } else if (hurried.left.retracts >= 0 && in_doubt) {
    Turn(hurried, model.cores_.On(world.core, CoreEvent::kDeadlines), {.move = Move::kDeadlines});
  }
  if (hurried.left.retracts >= 0 && info.somebody_away) {
    Turn(hurried, model.cores_.On(world.core, CoreEvent::kGrace), {.move = Move::kGrace});
  }
  if (world.left.launches > 0) Launch(world);
}

// All processes of the job die, and new ones begin: from the checkpoint that the old ones began
// with, or from one of the newest version that all of them ran.
void Model::Expansion::Launch(const World& world) {
  World next = world;
  --next.left.launches;
  const Member* oldest = nullptr;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Cell& cell = model.ranks_[world.cells[0][rank]];
    if (!cell.has_process()) return;
    const Member& member = model.ranks_.MemberOf(cell);
    if (oldest == nullptr || member.running().version < oldest->running().version) {
      oldest = &member;
    }
    next.cells[0][rank] = model.ranks_.Kill(world.cells[0][rank]).cell;
  }
  const auto launch = [&](int64_t version, const Digest& digest) {
    next.cells[1].fill(model.ranks_.Launch(version, digest, 0, 0));
    Step step{.move = Move::kLaunch, .incarnation = 1};
    HistoryRecord start{.kind = HistoryRecord::Kind::kStart};
    start.version = version;
    start.digest = digest;
    for (int rank = 0; rank < kRanks; ++rank) step.log.push_back({1, rank, start});
    Emit(next, std::move(step));
  };
  const RunningPlacement newest = oldest->running();
  if (newest.version != kStartVersion) launch(newest.version, newest.digest);
  launch(kStartVersion, DigestOf(StartPlacement()));
}

}  // namespace eplb::explorer
