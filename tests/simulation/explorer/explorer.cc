#include "tests/simulation/explorer/explorer.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

#include "tests/simulation/explorer/packed.h"
#include "tests/simulation/explorer/rank_logs.h"
#include "tests/simulation/explorer/visited.h"

namespace eplb::explorer {
namespace {

constexpr uint32_t kNone = 0xffffffff;

// Which of the steps that need no fault leads to rest; kNone for those that are not taken.
uint32_t RankOf(const Model& model, const World& before, const Step& step) {
  switch (step.move) {
    case Move::kUp:
    case Move::kSolved:
      return 0;
    case Move::kOldEnds:
      return 1;
    case Move::kDeliverDown:
      return 2;
    case Move::kTakeOutcome:
      return 3;
    case Move::kGiveUpStream:
    case Move::kConnect:
      // A rank of a run that was replaced tries for ever.
      return step.run == 0 && model.ranks()[before.cells[1][0]].has_process() ? 7 : 5;
    case Move::kEnterVote: {
      const auto& cells = before.cells[step.run];
      const auto has = [&](auto what) { return std::any_of(cells.begin(), cells.end(), what); };
      const bool open = has([&](uint32_t id) { return model.ranks()[id].pc != Pc::kTrain; });
      // A vote on different versions changes nothing and can be repeated for ever.
      const auto ready = [&](uint32_t id) {
        return model.ranks().MemberOf(model.ranks()[id]).prepared();
      };
      const bool unready = has([&](uint32_t id) {
        return ready(id) == nullptr ||
               (ready(cells[0]) != nullptr &&
                ready(id)->propose.version != ready(cells[0])->propose.version);
      });
      return open || !unready ? 4 : kNone;  // before streams that may be refused for ever
    }
    case Move::kDeadlines:
      return 6;
    default:
      return kNone;
  }
}

class Exploration {
 public:
  explicit Exploration(const Options& options)
      : options_(options), model_(options.bounds, options.mutant) {
    model_.check_symmetry = options.check_symmetry;
  }

  Figures Run() {
    const World start = model_.Start();
    figures_.violation = WhyNotPacked(start);
    if (!figures_.violation.empty()) return std::move(figures_);
    (void)Meet(start, kNone, 0, logs_.Start(start));
    for (uint32_t index = 0; index < visited_.size() && figures_.violation.empty(); ++index) {
      if (visited_.size() > options_.max_states) break;
      ExpandOne(index);
      if (options_.verbose && index % 1000000 == 999999) Tell(index);
    }
    figures_.states = visited_.size();
    figures_.core_states = model_.cores().size();
    figures_.rank_states = model_.ranks().size();
    if (!figures_.violation.empty() || visited_.size() > options_.max_states) {
      return std::move(figures_);
    }
    figures_.complete = true;
    CheckThatAllComeToRest();
    return std::move(figures_);
  }

 private:
  World At(uint32_t index) const { return Unpack(visited_[index], options_.bounds); }

  void Tell(uint32_t index) const {
    std::fprintf(stderr, "%u of %zu states, depth %u, %zu of the core, %zu of ranks, %zu logs\n",
                 index + 1, visited_.size(), depth_[index], model_.cores().size(),
                 model_.ranks().size(), logs_.size());
  }

  void ExpandOne(uint32_t index) {
    const World before = At(index);
    const Packed key = visited_[index];
    const bool at_rest = next_[index] == index;
    uint32_t best = kNone;
    uint16_t ordinal = 0;
    model_.Expand(before, [&](Successor successor) {
      const uint16_t this_ordinal = ordinal++;
      if (!figures_.violation.empty()) return;
      ++figures_.steps;
      if (!successor.violation.empty()) {
        Fail(index, this_ordinal, successor.violation);
        return;
      }
      const uint32_t next = Meet(successor.world, index, this_ordinal,
                                 [&] { return logs_.After(log_[index], successor); });
      const bool free = LeftBitsOf(visited_[next]) == LeftBitsOf(key);
      if (!free || next == index || at_rest) return;
      const uint32_t rank = RankOf(model_, before, successor.step);
      if (rank >= best) return;
      best = rank;
      next_[index] = next;
    });
    if (figures_.violation.empty()) figures_.violation = WhyNotPacked(model_);
  }

  template <class Log>
  uint32_t Meet(const World& world, uint32_t parent, uint16_t ordinal, Log log) {
    const auto [index, is_new] = visited_.Add(Pack(world));
    if (!is_new) return index;
    parent_.push_back(parent);
    ordinal_.push_back(ordinal);
    next_.push_back(kNone);
    depth_.push_back(parent == kNone ? 0 : static_cast<uint16_t>(depth_[parent] + 1));
    if constexpr (std::is_invocable_v<Log>) {
      log_.push_back(log());
    } else {
      log_.push_back(log);
    }
    figures_.depth = std::max<uint64_t>(figures_.depth, depth_.back());
    if (std::string wrong = model_.Check(world); !wrong.empty()) {
      Fail(parent, ordinal, wrong);
    } else if (model_.IsSettled(world)) {
      next_[index] = index;
      ++figures_.settled;
      if (model_.IsQuarantined(world)) ++figures_.quarantined;
      wrong = logs_.Check(log_.back());
      if (options_.quarantine_is_wrong && model_.IsQuarantined(world)) wrong = "QUARANTINE";
      if (!wrong.empty()) Fail(parent, ordinal, wrong);
    }
    figures_.logs_checked = logs_.num_checked();
    return index;
  }

  // Follows, from every state, the steps that need no fault: I7 and I12.
  void CheckThatAllComeToRest() {
    std::vector<bool> rests(visited_.size());
    std::vector<bool> on_path(visited_.size());
    std::vector<uint32_t> path;
    for (uint32_t start = 0; start < visited_.size(); ++start) {
      path.clear();
      uint32_t at = start;
      while (!rests[at] && next_[at] != at && next_[at] != kNone && !on_path[at]) {
        on_path[at] = true;
        path.push_back(at);
        at = next_[at];
      }
      if (!rests[at] && next_[at] != at) {
        Fail(parent_[at], ordinal_[at], "I12: nothing leads from here to rest");
        return;
      }
      rests[at] = true;
      for (const uint32_t passed : path) rests[passed] = true;
    }
  }

  void Fail(uint32_t parent, uint16_t ordinal, const std::string& what) {
    if (!figures_.violation.empty()) return;
    figures_.violation = what;
    std::vector<std::pair<uint32_t, uint16_t>> path;
    for (uint32_t at = parent; at != kNone; at = parent_[at]) {
      path.emplace_back(at, ordinal);
      ordinal = ordinal_[at];
    }
    std::reverse(path.begin(), path.end());
    for (const auto& [index, taken_ordinal] : path) {
      const World before = At(index);
      const uint16_t taken = taken_ordinal;  // clang 14 captures no structured binding
      uint16_t at = 0;
      model_.Expand(before, [&](Successor successor) {
        if (at++ != taken) return;
        figures_.trace.push_back(absl::StrCat(model_.Describe(before, successor.step), "\n    ",
                                              model_.Describe(successor.world)));
      });
    }
    figures_.trace.push_back(what);
  }

  const Options options_;
  Model model_;
  Figures figures_;
  Visited visited_;
  RankLogs logs_;
  // Values by index of a state.
  std::vector<uint32_t> parent_;   // the state it was met from first
  std::vector<uint16_t> ordinal_;  // which successor of it
  std::vector<uint32_t> next_;     // the step towards rest; itself at rest
  std::vector<uint16_t> depth_;
  std::vector<uint32_t> log_;
};

}  // namespace

std::string FiguresText(const Figures& figures) {
  return absl::StrCat(figures.states, " states, ", figures.steps, " steps, ", figures.settled,
                      " at rest, ", figures.quarantined, " of them in QUARANTINE, ",
                      figures.logs_checked, " histories read, depth ", figures.depth, ", ",
                      figures.core_states, " states of the core, ", figures.rank_states,
                      " of ranks");
}

Figures Explore(const Options& options) { return Exploration(options).Run(); }

}  // namespace eplb::explorer
