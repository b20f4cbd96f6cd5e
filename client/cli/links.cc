#include "client/cli/links.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "placement/bandwidth.h"

namespace eplb::cli {

absl::Status ReadLinks(const std::string& text, Costs& costs) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  const auto no = [&text] {
    return absl::InvalidArgumentError(absl::StrCat(
        "--link-gbps is \"", text, "\", expected INTRA,INTER, each ", kBandwidthExpected));
  };
  if (parts.size() != 2) return no();
  const absl::StatusOr<double> intra = ParseBandwidth(parts[0]);
  const absl::StatusOr<double> inter = ParseBandwidth(parts[1]);
  if (!intra.ok() || !inter.ok()) return no();
  costs.intra_bytes_per_s = *intra;
  costs.inter_bytes_per_s = *inter;
  return absl::OkStatus();
}

std::string LinksText(const CostOptions& options) {
  Costs costs;
  if (!ReadLinks(options.link_gbps, costs).ok()) return options.link_gbps;
  return absl::StrCat(BandwidthText(costs.intra_bytes_per_s), " inside a node and ",
                      BandwidthText(costs.inter_bytes_per_s), " between nodes");
}

std::string LinksNote(const CostOptions& options) {
  const std::vector<std::string> parts = absl::StrSplit(options.link_gbps, ',');
  std::string note;
  for (size_t i = 0; i < std::min<size_t>(parts.size(), 2); ++i) {
    const std::string one =
        BandwidthNote(parts[i], i == 0 ? LinkClass::kIntraNode : LinkClass::kInterNode);
    if (one.empty()) continue;
    absl::StrAppend(&note, note.empty() ? "note: " : "; ",
                    "--link-gbps: ", i == 0 ? "INTRA " : "INTER ", one);
  }
  return note;
}

}  // namespace eplb::cli
