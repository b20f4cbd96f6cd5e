#include "proto/wire/convert_load.h"

#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"
#include "proto/wire/fields.h"
#include "proto/wire/limits.h"

namespace eplb::wire {
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
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", bytes.size(), " bytes of counts, expected ", shape.num_layers,
                   " layers x ", shape.num_experts, " experts x ", cell_bytes));
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
    return absl::InvalidArgumentError(
        absl::StrCat(what, " must set exactly one of counts_u32 and counts_u64"));
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
    return absl::InvalidArgumentError(absl::StrCat("load report has ", in.earlier_size(),
                                                   " earlier parts, expected 0..", kMaxLoadParts));
  }
  if (in.parts_unknown() && in.earlier_size() > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load report has ", in.earlier_size(), " earlier parts and parts_unknown, expected none"));
  }
  report->parts_unknown = in.parts_unknown();
  report->earlier.resize(static_cast<size_t>(in.earlier_size()));
  for (int index = 0; index < in.earlier_size(); ++index) {
    v1::LoadReport::Part& from = *in.mutable_earlier(index);
    LoadPart& part = report->earlier[static_cast<size_t>(index)];
    EPLB_ASSIGN_OR_RETURN(part.last_step, GetCount("earlier.last_step", from.last_step()));
    EPLB_ASSIGN_OR_RETURN(part.version, GetCount("earlier.version", from.version()));
    EPLB_RETURN_IF_ERROR(
        TakeCounts(absl::StrCat("load report: earlier part ", index), shape, from, &part));
  }
  return absl::OkStatus();
}

}  // namespace

void LoadReportToProto(const LoadReport& report, v1::LoadReport* out) {
  const bool packed = !report.packed.cells.empty();
  out->set_first_step(static_cast<uint64_t>(report.first_step));
  out->set_last_step(static_cast<uint64_t>(report.last_step));
  out->set_num_layers(
      static_cast<uint32_t>(packed ? report.packed.num_layers : report.counts.rows()));
  out->set_num_experts(
      static_cast<uint32_t>(packed ? report.packed.num_experts : report.counts.cols()));
  SetCounts(report, out);
  out->set_dropped_steps(static_cast<uint64_t>(report.dropped_steps));
  out->set_version(static_cast<uint64_t>(report.version));
  for (const LoadPart& part : report.earlier) {
    v1::LoadReport::Part* to = out->add_earlier();
    to->set_last_step(static_cast<uint64_t>(part.last_step));
    to->set_version(static_cast<uint64_t>(part.version));
    SetCounts(part, to);
  }
  out->set_parts_unknown(report.parts_unknown);
}

absl::StatusOr<UpMessage> LoadReportFromProto(v1::LoadReport& in) {
  constexpr auto kMaxCells = static_cast<uint64_t>(kMaxSlotsOfAllLayers);
  LoadReport report;
  EPLB_ASSIGN_OR_RETURN(report.first_step, GetCount("first_step", in.first_step()));
  EPLB_ASSIGN_OR_RETURN(report.last_step, GetCount("last_step", in.last_step()));
  EPLB_ASSIGN_OR_RETURN(report.dropped_steps, GetCount("dropped_steps", in.dropped_steps()));
  EPLB_ASSIGN_OR_RETURN(report.version, GetCount("version", in.version()));
  if (report.last_step < report.first_step) {
    return absl::InvalidArgumentError(absl::StrCat("load report covers steps ", report.first_step,
                                                   "..", report.last_step,
                                                   ", the last is below the first"));
  }
  const CountShape shape{in.num_layers(), in.num_experts()};
  if (shape.num_layers == 0 || shape.num_experts == 0 ||
      uint64_t{shape.num_layers} * shape.num_experts > kMaxCells) {
    return absl::InvalidArgumentError(absl::StrCat("load report is ", shape.num_layers,
                                                   " layers x ", shape.num_experts,
                                                   " experts, expected 1..", kMaxCells, " cells"));
  }
  EPLB_RETURN_IF_ERROR(TakeCounts("load report", shape, in, &report));
  EPLB_RETURN_IF_ERROR(TakeParts(shape, in, &report));
  return report;
}

}  // namespace eplb::wire
