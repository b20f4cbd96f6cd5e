// Pieces of text that messages of every room share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eplb {

// "rank 3", "ranks 0, 1", "ranks 0, 1 and 12 more" with at most `most` of them; "all 8 ranks" where
// they are `of_all` and more than one; "no rank" for none. ranks: rising, of an integer type.
template <class Integer>
std::string ListRanks(const std::vector<Integer>& ranks, size_t most, size_t of_all = 0) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() > 1 && ranks.size() == of_all) return absl::StrCat("all ", of_all, " ranks");
  const size_t named = std::min(ranks.size(), most);
  const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(named);
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks.begin(), end, ", "),
      named < ranks.size() ? absl::StrCat(" and ", ranks.size() - named, " more") : "");
}

// Returns "layer 3", "layers 0, 2..5", "layers 0, 2 and 7 more" with at most `most` numbers and
// ranges; "all 4 layers" where they are `of_all` and more than one. layers: rising.
std::string ListLayers(const std::vector<int32_t>& layers, size_t most, int32_t of_all = 0);

// The system's text for a value of errno. threads: safe.
std::string ErrnoText(int error);

// "12 s", "1.9 s", "0.21 s", "3.4 ms", "12 us": for sentences.
std::string SecondsText(double seconds);
// `of` and `than` for one sentence: with so many digits that the texts differ where the numbers do.
struct ComparedText {
  std::string of;
  std::string than;
};
ComparedText CompareSeconds(double of, double than);
// "812 B", "1.8 GB".
std::string BytesText(int64_t bytes);
// "1 transfer", "2 transfers".
std::string CountText(int64_t count, const char* one);

// JSON has no other numbers: 0 for what is not finite.
inline double FiniteOrZero(double value) { return std::isfinite(value) ? value : 0; }

}  // namespace eplb
