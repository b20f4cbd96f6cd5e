// Load reports, whose packed counts are moved between the message and the value and not copied.
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/fields.h"
#include "proto/wire/report_counts.h"

namespace eplb::wire {

template <>
inline constexpr auto kFields<LoadPart> =
    std::tuple{Field{"last_step", &LoadPart::last_step}, Field{"version", &LoadPart::version}};

template <>
inline constexpr auto kFields<LoadReport> =
    std::tuple{Field{"first_step", &LoadReport::first_step},
               Field{"last_step", &LoadReport::last_step},
               Field{"dropped_steps", &LoadReport::dropped_steps},
               Field{"version", &LoadReport::version},
               Field{"parts_unknown", &LoadReport::parts_unknown},
               Field{"step_seconds", &LoadReport::step_seconds},
               Field{"split_tokens", &LoadReport::split_tokens},
               Field{"split_peaks", &LoadReport::split_peaks},
               Field{"split_peaks_static", &LoadReport::split_peaks_static},
               Field{"split_peaks_without_eplb", &LoadReport::split_peaks_without_eplb}};

namespace {

template <class Cell>
std::string PackCounts(const LoadMatrix& counts) {
  std::string bytes(static_cast<size_t>(counts.size()) * sizeof(Cell), '\0');
  for (Eigen::Index i = 0; i < counts.size(); ++i) {
    const auto cell = static_cast<Cell>(counts.data()[i]);
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(Cell), &cell, sizeof(Cell));
  }
  return bytes;
}

// A report or a part of it, to the fields of the same names.
template <class Counted, class Message>
void SetCounts(const Counted& counted, Message* out) {
  if (!counted.packed.cells.empty()) {
    out->set_counts_u32(counted.packed.cells);
    return;
  }
  const bool fits = counted.counts.size() == 0 ||
                    counted.counts.maxCoeff() <= int64_t{std::numeric_limits<uint32_t>::max()};
  if (fits) {
    out->set_counts_u32(PackCounts<uint32_t>(counted.counts));
  } else {
    out->set_counts_u64(PackCounts<uint64_t>(counted.counts));
  }
}

struct CountShape {
  uint32_t num_layers = 0;
  uint32_t num_experts = 0;
};

absl::Status CheckCountBytes(const std::string& what, CountShape shape, std::string_view bytes,
                             size_t cell_bytes) {
  if (bytes.size() == size_t{shape.num_layers} * shape.num_experts * cell_bytes) {
    return absl::OkStatus();
  }
  return InvalidInput(what, " has ", bytes.size(), " bytes of counts, expected ", shape.num_layers,
                      " layers x ", shape.num_experts, " experts x ", cell_bytes);
}

absl::Status UnpackCounts(std::string_view bytes, LoadMatrix* counts) {
  for (Eigen::Index i = 0; i < counts->size(); ++i) {
    uint64_t cell = 0;
    std::memcpy(&cell, bytes.data() + static_cast<size_t>(i) * sizeof(cell), sizeof(cell));
    EPLB_ASSIGN_OR_RETURN(counts->data()[i], GetCount("load report count", cell));
  }
  return absl::OkStatus();
}

// `what` names the message in an error.
template <class Message, class Counted>
absl::Status TakeCounts(const std::string& what, CountShape shape, Message& in, Counted* out) {
  if (in.counts_u32().empty() == in.counts_u64().empty()) {
    return InvalidInput(what, " must set exactly one of counts_u32 and counts_u64");
  }
  if (in.counts_u64().empty()) {
    EPLB_RETURN_IF_ERROR(CheckCountBytes(what, shape, in.counts_u32(), sizeof(uint32_t)));
    out->packed = {.num_layers = static_cast<int32_t>(shape.num_layers),
                   .num_experts = static_cast<int32_t>(shape.num_experts),
                   .cells = std::move(*in.mutable_counts_u32())};
    return absl::OkStatus();
  }
  // Checked before allocating, so that a short message cannot ask for much memory.
  EPLB_RETURN_IF_ERROR(CheckCountBytes(what, shape, in.counts_u64(), sizeof(uint64_t)));
  out->counts.resize(shape.num_layers, shape.num_experts);
  return UnpackCounts(in.counts_u64(), &out->counts);
}

absl::Status TakeParts(CountShape shape, v1::LoadReport& in, LoadReport* report) {
  if (in.earlier_size() > kMaxLoadParts) {
    return InvalidInput("load report has ", in.earlier_size(), " earlier parts, expected 0..",
                        kMaxLoadParts);
  }
  if (in.parts_unknown() && in.earlier_size() > 0) {
    return InvalidInput("load report has ", in.earlier_size(),
                        " earlier parts and parts_unknown, expected none");
  }
  report->earlier.resize(static_cast<size_t>(in.earlier_size()));
  for (int index = 0; index < in.earlier_size(); ++index) {
    v1::LoadReport::Part& from = *in.mutable_earlier(index);
    LoadPart& part = report->earlier[static_cast<size_t>(index)];
    EPLB_RETURN_IF_ERROR(ReadFields(from, &part, "earlier."));
    EPLB_RETURN_IF_ERROR(
        TakeCounts(absl::StrCat("load report: earlier part ", index), shape, from, &part));
  }
  return absl::OkStatus();
}

absl::Status CheckSplit(const LoadReport& report, uint32_t num_layers) {
  for (const auto& [name, numbers] :
       {std::pair{"split_tokens", &report.split_tokens},
        std::pair{"split_peaks", &report.split_peaks},
        std::pair{"split_peaks_static", &report.split_peaks_static},
        std::pair{"split_peaks_without_eplb", &report.split_peaks_without_eplb}}) {
    if (numbers->empty() || numbers->size() == num_layers) continue;
    return InvalidInput("load report: ", name, " has ", numbers->size(), " numbers, expected 0 or ",
                        num_layers);
  }
  return absl::OkStatus();
}

}  // namespace

void ToProto(const LoadReport& report, v1::LoadReport* out) {
  WriteFields(report, out);
  out->set_num_layers(static_cast<uint32_t>(NumLayers(report)));
  out->set_num_experts(static_cast<uint32_t>(NumExperts(report)));
  SetCounts(report, out);
  for (const LoadPart& part : report.earlier) {
    v1::LoadReport::Part* to = out->add_earlier();
    WriteFields(part, to);
    SetCounts(part, to);
  }
}

absl::StatusOr<LoadReport> FromProto(v1::LoadReport& in) {
  constexpr auto kMaxCells = static_cast<uint64_t>(kMaxSlotsOfAllLayers);
  LoadReport report;
  EPLB_RETURN_IF_ERROR(ReadFields(in, &report));
  if (!(report.step_seconds >= 0 && report.step_seconds <= kMaxStepSeconds)) {
    return InvalidInput("load report: step_seconds is ", report.step_seconds, ", expected 0..",
                        kMaxStepSeconds);
  }
  if (report.last_step < report.first_step) {
    return InvalidInput("load report covers steps ", report.first_step, "..", report.last_step,
                        ", the last is below the first");
  }
  const CountShape shape{in.num_layers(), in.num_experts()};
  if (shape.num_layers == 0 || shape.num_experts == 0 ||
      uint64_t{shape.num_layers} * shape.num_experts > kMaxCells) {
    return InvalidInput("load report is ", shape.num_layers, " layers x ", shape.num_experts,
                        " experts, expected 1..", kMaxCells, " cells");
  }
  EPLB_RETURN_IF_ERROR(CheckSplit(report, shape.num_layers));
  EPLB_RETURN_IF_ERROR(TakeCounts("load report", shape, in, &report));
  EPLB_RETURN_IF_ERROR(TakeParts(shape, in, &report));
  return report;
}

}  // namespace eplb::wire
