#include "client/cli/daemon/rank_names.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eplb::cli {

std::string NameRanks(const std::vector<uint32_t>& ranks, size_t of_all) {
  constexpr size_t kMostNamed = 8;
  if (ranks.empty()) return "";
  if (ranks.size() > 1 && ranks.size() == of_all) {
    return absl::StrCat("all ", of_all, " ranks");
  }
  const size_t shown = std::min(ranks.size(), kMostNamed);
  std::string text =
      absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown), ", ");
  if (ranks.size() > shown) absl::StrAppend(&text, " and ", ranks.size() - shown, " more");
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", text);
}

}  // namespace eplb::cli
