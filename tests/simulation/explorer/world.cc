#include "tests/simulation/explorer/world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "tests/simulation/explorer/bytes.h"
#include "tests/simulation/explorer/expansion.h"

namespace eplb::explorer {
namespace {

constexpr const char* kPcNames[] = {"trains",    "waits",    "gets nothing", "gets apply",
                                    "gets drop", "gets end", "ended"};
constexpr const char* kStreamNames[] = {"away", "cut", "open", "done"};
constexpr const char* kPhaseNames[] = {"RECOVERING", "IDLE",       "SOLVING",   "PREPARING",
                                       "VOTING",     "CANCELLING", "QUARANTINE"};

// First `first`, then `second`.
int Composed(int first, int second) {
  Permutation both;
  for (int rank = 0; rank < kRanks; ++rank) {
    both[rank] = kAllPermutations[second][kAllPermutations[first][rank]];
  }
  const auto* const found = std::find(kAllPermutations.begin(), kAllPermutations.end(), both);
  return static_cast<int>(found - kAllPermutations.begin());
}

}  // namespace

Model::Model(Bounds bounds, Mutant mutant)
    : bounds_(bounds), mutant_(mutant), cores_(&messages_, mutant), ranks_(&messages_, mutant) {
  messages_.carries = bounds.losses > 0;
}

uint32_t Model::Keep(const Stored& stored) {
  Bytes bytes;
  bytes.Add(stored.term);
  bytes.Add(int64_t{stored.job});
  bytes.Add(stored.term_before);
  bytes.Add(int64_t{stored.job_before});
  bytes.Add(int64_t{stored.owner});
  bytes.Add(int64_t{stored.replaced});
  return stores_.Add(std::move(bytes).Take(), stored);
}

World Model::Start() {
  World world;
  world.left = bounds_;
  Stored stored;
  world.core = cores_.Start(stored);
  stored.term = cores_.Info(world.core).term;
  world.stored = Keep(stored);
  const uint32_t rank =
      ranks_.Run(kStartVersion, DigestOf(StartPlacement()), kEarlierTerm, kEarlierHighestVersion);
  world.cells[0].fill(rank);
  world.cells[1].fill(ranks_.Nobody());
  world.committed = kStartVersion;
  return world;
}

bool Model::Exists(const World& world, int run) const {
  return ranks_[world.cells[run][0]].has_process();
}

bool Model::HasEnded(const World& world, int run) const {
  const auto& cells = world.cells[run];
  return std::any_of(cells.begin(), cells.end(),
                     [this](uint32_t cell) { return ranks_[cell].pc == Pc::kEnded; });
}

void Model::Expand(const World& world, const Visit& visit) {
  Expansion expansion{*this, [this, &visit](Successor successor) {
                        Sort(successor);
                        visit(std::move(successor));
                      }};
  expansion.Run(world);
}

void Model::ExpandToldApart(const World& world, const Visit& visit) {
  Expansion expansion{.model = *this, .visit = visit, .told_apart = true};
  expansion.Run(world);
}

World Model::Canonical(const World& world) {
  Successor successor{.world = world};
  Sort(successor);
  return successor.world;
}

// Ranks with equal cells may stand in any order: of these the one with the lowest core is taken.
void Model::Sort(Successor& successor) {
  World& world = successor.world;
  const CoreInfo& info = cores_.Info(world.core);
  std::array<unsigned, kRuns> orders{};  // bits in kAllPermutations
  for (int run = 0; run < kRuns; ++run) {
    const auto cells = world.cells[run];
    auto& sorted = world.cells[run];
    std::sort(sorted.begin(), sorted.end());
    for (int index = 0; index < kPermutations; ++index) {
      const Permutation& to = kAllPermutations[index];
      if (sorted[to[0]] != cells[0] || sorted[to[1]] != cells[1] || sorted[to[2]] != cells[2]) {
        continue;
      }
      orders[run] |= 1U << index;
      if (!info.knows[run]) break;  // the core is the same whatever their order
    }
  }
  const Lowest& lowest = LowestOf(world.core, orders);
  world.core = lowest.core;
  for (int run = 0; run < kRuns; ++run) {
    int& order = successor.permutation[run];
    order = Composed(order, lowest.orders[run]);
  }
}

const Model::Lowest& Model::LowestOf(uint32_t core, const std::array<unsigned, kRuns>& orders) {
  const uint64_t key = uint64_t{core} << 12 | orders[0] << 6 | orders[1];
  const auto [found, is_new] = lowest_.try_emplace(key);
  if (!is_new) return found->second;
  Lowest lowest{.core = 0xffffffff};
  for (int first = 0; first < kPermutations; ++first) {
    for (int second = 0; second < kPermutations; ++second) {
      if ((orders[0] >> first & 1) == 0 || (orders[1] >> second & 1) == 0) continue;
      const uint32_t renamed = cores_.Renamed(core, first, second);
      if (renamed < lowest.core) lowest = {renamed, {first, second}};
    }
  }
  return lowest_[key] = lowest;
}

bool Model::IsOlder(const World& world, int run) const {
  return run == 0 && Exists(world, 0) && Exists(world, 1);
}

// A rank of an older run may be refused, and tries again for ever.
bool Model::IsStill(const Cell& cell, bool is_older) const {
  if (!cell.up.empty() || ranks_.HasNews(cell) || !cell.old.empty()) return false;
  if (!cell.has_process() || cell.stream == Stream::kDone) return true;
  return cell.stream == Stream::kOpen ? cell.welcomed : is_older;
}

bool Model::IsStill(const World& world) const {
  for (int run = 0; run < kRuns; ++run) {
    const bool stands = run == 0 && world.hung;
    for (const uint32_t id : world.cells[run]) {
      const Cell& cell = ranks_[id];
      if (!IsStill(cell, IsOlder(world, run))) return false;
      if (!stands && cell.pc != Pc::kTrain && cell.pc != Pc::kEnded) return false;
    }
  }
  return true;
}

bool Model::IsQuarantined(const World& world) const {
  return cores_.Info(world.core).phase == core::Phase::kQuarantine;
}

bool Model::IsSettled(const World& world) const {
  if (IsQuarantined(world)) return true;
  const int newest = Exists(world, 1) ? 1 : 0;
  const auto& cells = world.cells[newest];
  if (std::all_of(cells.begin(), cells.end(),
                  [this](uint32_t cell) { return ranks_[cell].pc == Pc::kEnded; })) {
    return true;
  }
  if (!IsStill(world)) return false;
  const CoreInfo& info = cores_.Info(world.core);
  return info.phase == core::Phase::kIdle && info.current == newest && info.all_connected;
}

std::string Model::Check(const World& world) const {
  const CoreInfo& info = cores_.Info(world.core);
  if (info.has_job && info.phase != core::Phase::kRecovering &&
      info.phase != core::Phase::kQuarantine) {
    if (!info.all_said_hello) return "the daemon left RECOVERING before every rank said Hello";
    // No operator resumes a job here.
    for (const uint32_t id : world.cells[info.current]) {
      if (ranks_[id].has_process() && ranks_.CarriesQuarantine(ranks_[id], info.current)) {
        return "a rank carries QUARANTINE, and the daemon does not know of it";
      }
    }
  }
  for (const auto& cells : world.cells) {
    const Member* ahead = nullptr;   // first member that took the outcome of the newest vote
    const Member* behind = nullptr;  // first member that did not
    for (const uint32_t id : cells) {
      const Cell& cell = ranks_[id];
      if (!cell.has_process() || cell.pc == Pc::kEnded || cell.pc == Pc::kGetEnd) continue;
      const bool took = cell.pc == Pc::kTrain || cell.pc == Pc::kWaiting;
      const Member& member = ranks_.MemberOf(cell);
      const Member*& other = took ? ahead : behind;
      if (other == nullptr) other = &member;
      if (member.running().version != other->running().version ||
          member.running().digest != other->running().digest) {
        return absl::StrCat("I1: ranks train under versions ", other->running().version, " and ",
                            member.running().version);
      }
    }
  }
  if (!IsStill(world) || !IsSettled(world) || IsQuarantined(world)) return "";
  const Cell& cell = ranks_[world.cells[Exists(world, 1) ? 1 : 0][0]];
  const Member& member = ranks_.MemberOf(cell);
  if (cell.pc == Pc::kEnded) return "";
  if (!info.known || info.known->version != member.running().version ||
      info.known->digest != member.running().digest) {
    return "the daemon is IDLE and the ranks run another placement than it knows";
  }
  const StoredJob& stored = messages_.jobs[stores_[world.stored].job];
  if (!stored || !stored->placement || stored->version != info.known->version ||
      DigestOf(*stored->placement) != info.known->digest) {
    return "the daemon is IDLE and its store has another placement";
  }
  if (info.next_version <= ranks_.HighestVersion(cell) || info.next_version <= world.committed) {
    return "I2: the next version is not above all that were seen";
  }
  return "";
}

std::string Model::Describe(const World& before, const Step& step) const {
  static constexpr const char* kMoves[] = {"start",
                                           "receives",
                                           "connects",
                                           "gives up its stream",
                                           "enters the vote",
                                           "skips the vote",
                                           "takes its outcome",
                                           "is heard",
                                           "an old stream ends",
                                           "is cut off",
                                           "a new run is launched",
                                           "a new run is launched beside this one",
                                           "a window is complete",
                                           "the policy answered",
                                           "deadlines pass",
                                           "the grace passes"};
  static constexpr const char* kHow[] = {"", " (LOST)", " (TWICE)", " (OVERTAKES)"};
  std::string text;
  const Cell& cell = ranks_[before.cells[step.run][step.rank]];
  const size_t at = step.arrival == Arrival::kOvertaken ? 1 : 0;
  std::string message;
  if (step.move == Move::kDeliverDown) message = NameOf(messages_.down[cell.down[at]]);
  if (step.move == Move::kUp) {
    message = NameOf(messages_.up[(step.stream < 0 ? cell.up : cell.old[step.stream].up)[at]]);
  }
  if (step.move <= Move::kCut && step.move != Move::kStart) {
    text = absl::StrCat("rank ", step.run == 0 ? "a" : "b", step.rank, " ");
  }
  absl::StrAppend(&text, kMoves[static_cast<int>(step.move)], message.empty() ? "" : ": ", message,
                  kHow[static_cast<int>(step.arrival)], step.vote);
  if (step.crashed_before >= 0) {
    absl::StrAppend(&text, "; the daemon crashes after ", step.crashed_before, " effects",
                    step.loss);
  }
  return text;
}

std::string Model::Describe(const World& world) const {
  const CoreInfo& info = cores_.Info(world.core);
  const StoredJob& stored = messages_.jobs[stores_[world.stored].job];
  std::string text =
      absl::StrCat("daemon ", kPhaseNames[static_cast<int>(info.phase)], " knows v",
                   info.known ? info.known->version : 0, " next v", info.next_version,
                   " proposes v", info.proposed, " term ", info.term, "; store v",
                   stored ? stored->version : 0, world.hung ? "; run a hangs" : "");
  for (int run = 0; run < kRuns; ++run) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const Cell& cell = ranks_[world.cells[run][rank]];
      if (!cell.has_process() && cell.old.empty()) continue;
      absl::StrAppend(&text, "\n      rank ", run == 0 ? "a" : "b", rank, " ");
      if (!cell.has_process()) {
        absl::StrAppend(&text, "dead");
      } else {
        const Member& member = ranks_.MemberOf(cell);
        absl::StrAppend(&text, kPcNames[static_cast<int>(cell.pc)], " v", member.running().version,
                        " ready v", member.prepared() ? member.prepared()->propose.version : 0,
                        " stream ", kStreamNames[static_cast<int>(cell.stream)],
                        cell.welcomed ? "" : " unwelcomed");
      }
      for (const uint32_t up : cell.up) absl::StrAppend(&text, " ^", NameOf(messages_.up[up]));
      for (const uint32_t down : cell.down) {
        absl::StrAppend(&text, " v", NameOf(messages_.down[down]));
      }
      for (const OldStream& old : cell.old) {
        absl::StrAppend(&text, " old[");
        for (const uint32_t up : old.up) absl::StrAppend(&text, " ^", NameOf(messages_.up[up]));
        absl::StrAppend(&text, " ]");
      }
    }
  }
  return text;
}

}  // namespace eplb::explorer
