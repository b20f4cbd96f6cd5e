#include "server/core/state/report_check.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "proto/wire/report_counts.h"

namespace eplb::core {
namespace {

std::string PartText(size_t index) { return absl::StrCat("load report: earlier part ", index); }

// Cell by cell no more in the parts than in the window.
absl::Status CheckPartCounts(const wire::LoadReport& report) {
  const LoadMatrix counts = wire::CountsOf(report);
  LoadMatrix sum = LoadMatrix::Zero(counts.rows(), counts.cols());
  for (size_t index = 0; index < report.earlier.size(); ++index) {
    const wire::LoadPart& part = report.earlier[index];
    if (wire::LeastCount(part) < 0) {
      return InvalidInput(PartText(index), ": a count is ", wire::LeastCount(part),
                          ", it must be >= 0");
    }
    if (!wire::AddCounts(part, &sum) || (sum > counts).any()) {
      return InvalidInput(PartText(index),
                          ": a count of the parts up to it is above the whole window's");
    }
  }
  return absl::OkStatus();
}

// Steps rise and leave some for the last placement, versions rise up to the last one's.
absl::Status CheckParts(const wire::LoadReport& report) {
  if (report.earlier.empty()) return absl::OkStatus();
  if (static_cast<int32_t>(report.earlier.size()) > wire::kMaxLoadParts || report.parts_unknown) {
    return InvalidInput("load report: ", report.earlier.size(), " earlier parts, expected 0..",
                        report.parts_unknown ? 0 : wire::kMaxLoadParts);
  }
  int64_t last_step = report.first_step - 1;
  int64_t version = -1;
  for (size_t index = 0; index < report.earlier.size(); ++index) {
    const wire::LoadPart& part = report.earlier[index];
    if (part.last_step <= last_step || part.last_step >= report.last_step) {
      return InvalidInput(PartText(index), " ends with step ", part.last_step, ", expected ",
                          last_step + 1, "..", report.last_step - 1);
    }
    if (part.version <= version || part.version >= report.version) {
      return InvalidInput(PartText(index), " has version ", part.version, ", expected ",
                          version + 1, "..", report.version - 1);
    }
    if (wire::NumLayers(part) != wire::NumLayers(report) ||
        wire::NumExperts(part) != wire::NumExperts(report)) {
      return InvalidInput(PartText(index), " has another shape than its report");
    }
    last_step = part.last_step;
    version = part.version;
  }
  return CheckPartCounts(report);
}

absl::Status CheckSplit(const wire::LoadReport& report, const Topology& topology) {
  const std::vector<int64_t>& tokens = report.split_tokens;
  const std::vector<int64_t>& peaks = report.split_peaks;
  const std::vector<int64_t>& peaks_static = report.split_peaks_static;
  const std::vector<int64_t>& peaks_without_eplb = report.split_peaks_without_eplb;
  if (peaks_static.size() != peaks_without_eplb.size() ||
      (!peaks_static.empty() && peaks_static.size() != peaks.size())) {
    return InvalidInput("load report: fullest GPUs of ", peaks.size(), " layers as split, of ",
                        peaks_static.size(), " under the static layout and of ",
                        peaks_without_eplb.size(), " without EPLB");
  }
  if (tokens.empty() && peaks.empty()) return absl::OkStatus();
  const auto num_layers = static_cast<size_t>(topology.num_layers());
  if (tokens.size() != num_layers || peaks.size() != num_layers) {
    return InvalidInput("load report: splits of ", tokens.size(),
                        " layers with the fullest GPUs of ", peaks.size(), ", the job has ",
                        num_layers, " layers");
  }
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const int64_t num_gpus = topology.num_gpus();
    const int64_t mean = tokens[layer] / num_gpus + (tokens[layer] % num_gpus == 0 ? 0 : 1);
    for (const std::vector<int64_t>* layout : {&peaks, &peaks_static, &peaks_without_eplb}) {
      if (layout->empty()) continue;  // an older library does not send it
      const int64_t peak = (*layout)[layer];
      if (tokens[layer] >= 0 && peak >= mean && peak <= tokens[layer]) continue;
      return InvalidInput("load report: splits of layer ", layer, ": ", tokens[layer],
                          " tokens, of which the fullest of ", num_gpus, " GPUs has ", peak);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReport(const wire::LoadReport& report, const Topology& topology) {
  if (report.first_step < 0 || report.last_step < report.first_step) {
    return InvalidInput("load report: steps ", report.first_step, "..", report.last_step,
                        " must be >= 0 and not go backwards");
  }
  const int32_t num_layers = wire::NumLayers(report);
  const int32_t num_experts = wire::NumExperts(report);
  if (num_layers != topology.num_layers() || num_experts != topology.num_experts()) {
    return InvalidInput("load report: counts are ", num_layers, " layers x ", num_experts,
                        " experts, the job has ", topology.num_layers(), " x ",
                        topology.num_experts());
  }
  if (const int64_t least = wire::LeastCount(report); least < 0) {
    return InvalidInput("load report: a count is ", least, ", it must be >= 0");
  }
  EPLB_RETURN_IF_ERROR(CheckSplit(report, topology));
  return CheckParts(report);
}

}  // namespace eplb::core
