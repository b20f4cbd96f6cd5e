#include "client/session/token_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace eplb {
namespace {

constexpr size_t kMostRanges = 8;

}  // namespace

TokenWatch::TokenWatch(int32_t rank, std::vector<int32_t> layers, int32_t num_layers)
    : rank_(rank), position_(static_cast<size_t>(num_layers), -1) {
  for (const int32_t layer : layers) {
    position_[static_cast<size_t>(layer)] = static_cast<int32_t>(layers_.size());
    layers_.push_back({.layer = layer});
  }
}

void TokenWatch::Recorded(int32_t layer) {
  if (layer < 0 || layer >= std::ssize(position_)) return;  // refused, or nothing is watched
  const int32_t position = position_[static_cast<size_t>(layer)];
  if (position >= 0) layers_[static_cast<size_t>(position)].recorded = true;
}

bool TokenWatch::EndWindow(const wire::LoadReport& window, bool is_whole) {
  for (Layer& one : layers_) {
    if ((window.counts.row(one.layer) > 0).any()) {
      one = {.layer = one.layer};
    } else if (is_whole) {
      if (one.windows == 0) one.since = window.first_step;
      one.windows = std::min(one.windows + 1, kSilentWindows);
      one.steps = window.last_step - one.since + 1;
    }
  }
  std::string now = ReasonNow();
  const bool is_new = now != reason_ && !now.empty();
  reason_ = std::move(now);
  return is_new;
}

std::string TokenWatch::ReasonNow() const {
  std::vector<int32_t> silent;
  std::vector<int32_t> not_recorded;
  int64_t since = 0;
  for (const Layer& one : layers_) {
    if (!one.is_silent()) continue;
    silent.push_back(one.layer);
    if (!one.recorded) not_recorded.push_back(one.layer);
    since = std::max(since, one.since);
  }
  if (silent.empty()) return "";
  const bool all = silent.size() == layers_.size();
  std::string text =
      absl::StrCat("NOT_COUNTING: rank ", rank_, " has counted no token ",
                   all ? "" : absl::StrCat("of ", ListLayers(silent, kMostRanges), " "),
                   "since step ", since, "; ");
  if (not_recorded.empty()) {
    absl::StrAppend(&text, "it recorded only counts of 0");
  } else if (not_recorded.size() == silent.size()) {
    absl::StrAppend(&text, "it did not record ", all ? "any layer" : "them");
  } else {
    absl::StrAppend(&text, "it did not record ", ListLayers(not_recorded, kMostRanges),
                    " and recorded only counts of 0 of the others");
  }
  return absl::StrCat(text, " (docs/symptoms.md)");
}

}  // namespace eplb
