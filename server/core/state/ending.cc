#include "server/core/state/ending.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/foreign_text.h"
#include "server/core/state/sentences.h"

namespace eplb::core {
namespace {

constexpr size_t kMaxWhy = 512;  // bytes of what a rank says

// Ranks whose stream was cut by `until` and that have not been heard of since, first lost first.
std::vector<int32_t> RanksCut(const Run& run, absl::Time until) {
  std::vector<int32_t> cut;
  for (int32_t index = 0; index < run.world_size(); ++index) {
    const Rank& rank = run.ranks[index];
    if (rank.cut && rank.away_since <= until) cut.push_back(index);
  }
  std::ranges::stable_sort(cut, [&run](int32_t a, int32_t b) {
    return run.ranks[a].away_since < run.ranks[b].away_since;
  });
  return cut;
}

std::string AboutSeconds(absl::Duration duration) {
  return absl::StrFormat("%.2f s", absl::ToDoubleSeconds(duration));
}

std::string FirstLost(const Run& run, int32_t index) {
  const Rank& rank = run.ranks[index];
  return absl::StrCat("rank ", index, " was lost at ",
                      absl::FormatTime("%H:%M:%S UTC", rank.away_since, absl::UTCTimeZone()),
                      ", after step ", rank.step, " (its stream ended without a close)");
}

// "; ranks 1, 3 were lost within 0.20 s after it", or nothing.
std::string LostLater(const Run& run, const std::vector<int32_t>& cut) {
  if (cut.size() < 2) return "";
  std::vector<int32_t> later(cut.begin() + 1, cut.end());
  const absl::Duration within =
      run.ranks[later.back()].away_since - run.ranks[cut.front()].away_since;
  std::ranges::sort(later);
  const bool all_others = std::ssize(cut) == run.world_size() && later.size() > 1;
  const std::string who =
      all_others ? absl::StrCat("the other ", later.size(), " ranks") : RankList(later);
  return absl::StrCat("; ", who, later.size() == 1 ? " was" : " were", " lost within ",
                      AboutSeconds(within), " after it");
}

std::string FailureAlone(const Failure& failure, const std::string& why) {
  if (failure.missing_ranks.empty()) {
    return absl::StrCat("rank ", failure.rank, " failed after step ", failure.step, why);
  }
  return absl::StrCat(RankList(failure.missing_ranks), " did not answer the vote after step ",
                      failure.step, ", reported by rank ", failure.rank, why);
}

}  // namespace

Failure FailureOf(Sender sender, const wire::Goodbye& goodbye, absl::Time now) {
  return {.rank = sender.index,
          .step = sender.rank.step,
          .at = now,
          .why = Clipped(goodbye.reason, kMaxWhy),
          .missing_ranks = goodbye.missing_ranks};
}

std::string FailureReason(const Run& run) {
  const Failure& failure = *run.failure;
  const std::string why = failure.why.empty() ? "" : absl::StrCat(": ", failure.why);
  std::vector<int32_t> cut = RanksCut(run, failure.at);
  if (cut.empty()) {
    cut = RanksCut(run, failure.at + kSettling);
    cut.resize(std::min<size_t>(cut.size(), 1));
  }
  if (cut.empty()) return FailureAlone(failure, why);
  const absl::Duration after = failure.at - run.ranks[cut.front()].away_since;
  const std::string when = after < absl::ZeroDuration()
                               ? absl::StrCat(AboutSeconds(-after), " before that was seen")
                               : absl::StrCat(AboutSeconds(after), " later");
  std::string text =
      absl::StrCat(FirstLost(run, cut.front()), LostLater(run, cut), "; rank ", failure.rank);
  if (failure.missing_ranks.empty()) return absl::StrCat(text, " failed ", when, why);
  return absl::StrCat(text, " reported ", when, " that ", RankList(failure.missing_ranks),
                      " did not answer the vote", why);
}

std::string LossReason(const Run& run, absl::Duration grace, absl::Time now) {
  const std::vector<int32_t> cut = RanksCut(run, absl::InfiniteFuture());
  const std::string back = absl::StrCat("did not reconnect within ", absl::FormatDuration(grace));
  const absl::Time since = now - grace;
  if (!cut.empty() && run.ranks[cut.front()].away_since < since) {
    return absl::StrCat(FirstLost(run, cut.front()), " and ", back, LostLater(run, cut));
  }
  std::vector<int32_t> away;
  for (int32_t index = 0; index < run.world_size(); ++index) {
    const Rank& rank = run.ranks[index];
    const bool is_away = rank.said_hello && rank.session == 0 && !rank.finished;
    if (is_away && rank.away_since < since) away.push_back(index);
  }
  if (!run.moved.empty()) return absl::StrCat(RankList(away), " ", back, "; ", run.moved);
  return absl::StrCat(RankList(away), ", whose streams the daemon ended, ", back);
}

void AmendEnding(DecisionContext& context, Job& job) {
  if (!job.current || job.current->ending != Ending::kFinal || !job.current->failure) return;
  Run& run = *job.current;
  std::string reason = FailureReason(run);
  if (reason == run.end.reason()) return;
  run.end.set_reason(std::move(reason));
  RecordEvent(context, job, "end_amended", job.last_known ? job.last_known->version : 0,
              absl::StrCat("run ", run.name,
                           " ended for another reason than first reported: ", run.end.reason()));
  // At the end of a Tick: a failure must not drop what follows here.
  job.store.due = true;
}

const v1::RunEnd* EndOf(const Job& job) {
  if (!job.current) return job.owner.ended_before ? &*job.owner.ended_before : nullptr;
  return job.current->ending == Ending::kLive ? nullptr : &job.current->end;
}

}  // namespace eplb::core
