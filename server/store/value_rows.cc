// Each value as the cells of its row: its key as cells of their own, the rest as one message.
#include "server/store/value_rows.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "proto/wire/fields.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/messages.h"
#include "server/store/placement_bytes.h"

namespace eplb {

namespace {

constexpr double kMaxCount = 1e9;  // steps or windows

using google::protobuf::FieldDescriptor;
using sqlite::Cell;
using sqlite::Row;

// Reads a row's cells from the left. A cell of another kind than the reader asks for is an error.
class Reader {
 public:
  explicit Reader(const Row& row) : row_(row) {}

  int64_t Integer() { return Take<int64_t>(); }
  std::string Text() { return Take<std::string>(); }
  double Real() { return std::bit_cast<double>(Integer()); }
  std::string Bytes() { return Take<sqlite::Bytes>().bytes; }
  absl::Status Done(const std::string& what) const {
    if (good_ && next_ == row_.size()) return absl::OkStatus();
    return DataLoss("a row of ", what, " has an unknown format");
  }

 private:
  template <class T>
  T Take() {
    const T* value = next_ < row_.size() ? std::get_if<T>(&row_[next_]) : nullptr;
    ++next_;
    if (value != nullptr) return *value;
    good_ = false;
    return T();
  }

  const Row& row_;
  size_t next_ = 0;
  bool good_ = true;
};

absl::Status CheckValues(const google::protobuf::Message& message);

absl::Status CheckSplit(const std::string& name) {
  for (const SplitMode split : {SplitMode::kEqual, SplitMode::kBatch}) {
    if (name == wire::SplitName(split)) return absl::OkStatus();
  }
  return InvalidInput("split is \"", Clipped(name, 64), "\", expected equal or batch");
}

// index: of an element; not used for a field that is not repeated. REQUIRES: repeated fields are
// messages or uint64.
absl::Status CheckValue(const google::protobuf::Message& in, const FieldDescriptor& field,
                        int index) {
  const google::protobuf::Reflection& values = *in.GetReflection();
  const bool many = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT64:
      return wire::GetCount(field.name(), many ? values.GetRepeatedUInt64(in, &field, index)
                                               : values.GetUInt64(in, &field))
          .status();
    case FieldDescriptor::CPPTYPE_UINT32:
      return wire::GetSmall(field.name(), values.GetUInt32(in, &field)).status();
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return wire::GetReal(field.name(), values.GetDouble(in, &field)).status();
    case FieldDescriptor::CPPTYPE_ENUM:
      return wire::KnownEnum(field.name(), *field.enum_type(), values.GetEnumValue(in, &field))
          .status();
    case FieldDescriptor::CPPTYPE_STRING:
      return field.name() == "split" ? CheckSplit(values.GetString(in, &field)) : absl::OkStatus();
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return CheckValues(many ? values.GetRepeatedMessage(in, &field, index)
                              : values.GetMessage(in, &field));
    default:
      return absl::OkStatus();
  }
}

// errors: InvalidArgument, naming the first field that no daemon writes so: a count above the range
// of the core's integers, a number that is not finite, an unknown value of an enumeration or of
// `split`.
absl::Status CheckValues(const google::protobuf::Message& message) {
  std::vector<const FieldDescriptor*> fields;
  const google::protobuf::Reflection& values = *message.GetReflection();
  values.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? values.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) EPLB_RETURN_IF_ERROR(CheckValue(message, *field, i));
  }
  return absl::OkStatus();
}

// Returns the message in the next cell. errors: DataLoss, naming the table or the field.
template <class Message>
absl::StatusOr<Message> MessageOf(Reader& reader, const char* table) {
  Message message;
  if (!message.ParseFromString(reader.Bytes())) {
    return DataLoss("a row of ", table, " has a message that cannot be parsed");
  }
  const absl::Status good = CheckValues(message);
  if (!good.ok()) return DataLoss("a record's ", std::string(good.message()));
  wire::ClipTexts(&message);
  return message;
}

// Returns the cell of a message, which is fit to be read back.
template <class Message>
sqlite::Bytes CellOf(Message message) {
  wire::ClipTexts(&message);
  return {message.SerializeAsString()};
}

// Little-endian.
std::string FloatsOf(const Load& load) {
  const RealMatrix tokens = load.ToDouble();
  std::string bytes;
  bytes.reserve(sizeof(float) * static_cast<size_t>(tokens.size()));
  for (Eigen::Index i = 0; i < tokens.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(tokens.data()[i]));
    for (uint32_t shift = 0; shift < 32; shift += 8) {
      bytes.push_back(static_cast<char>((bits >> shift) & 0xffU));
    }
  }
  return bytes;
}

absl::StatusOr<Load> LoadFromFloats(const std::string& bytes, int64_t num_layers,
                                    int64_t num_experts) {
  constexpr int64_t kMost = 1 << 24;
  if (num_layers < 1 || num_experts < 1 || num_layers > kMost || num_experts > kMost ||
      std::ssize(bytes) != num_layers * num_experts * 4) {
    return DataLoss("a typical load of ", num_layers, " layers and ", num_experts, " experts has ",
                    bytes.size(), " bytes");
  }
  RealMatrix tokens(num_layers, num_experts);
  for (Eigen::Index i = 0; i < tokens.size(); ++i) {
    uint32_t bits = 0;
    for (uint32_t byte = 0; byte < 4; ++byte) {
      bits |= uint32_t{static_cast<uint8_t>(bytes[static_cast<size_t>(4 * i + byte)])}
              << (8 * byte);
    }
    tokens.data()[i] = static_cast<double>(std::bit_cast<float>(bits));
  }
  absl::StatusOr<Load> load = Load::FromEstimates(std::move(tokens));
  if (load.ok() && load->has_tokens()) return load;
  return DataLoss("a typical load: ", load.ok() ? "it has no tokens" : load.status().message());
}

// where, job: for the error.
absl::StatusOr<Placement> PlacementOf(const std::string& bytes, const std::string& digest,
                                      const std::string& path, const std::string& job) {
  absl::StatusOr<Placement> placement = PlacementFromBytes(bytes);
  if (!placement.ok()) {
    return DataLoss(path, ": job \"", job, "\": ", std::string(placement.status().message()));
  }
  const Digest computed = DigestOf(*placement);
  if (digest == BytesOf(computed)) return placement;
  return DataLoss(path, ": job \"", job, "\": the stored placement's digest is not ",
                  computed.Hex(), ", the digest of its maps");
}

}  // namespace

std::string BytesOf(const Digest& digest) { return {digest.bytes.begin(), digest.bytes.end()}; }

absl::StatusOr<JobRow> JobOf(const Row& row) {
  Reader reader(row);
  JobRow job;
  job.job = reader.Text();
  job.version = reader.Integer();
  job.digest = reader.Bytes();
  job.next_version = reader.Integer();
  EPLB_ASSIGN_OR_RETURN(v1::RunEnd end, MessageOf<v1::RunEnd>(reader, "jobs"));
  // Without an ending the run goes on.
  if (end.ending() != v1::RUN_ENDING_UNSPECIFIED) job.end = std::move(end);
  const std::string bytes = reader.Bytes();
  EPLB_RETURN_IF_ERROR(reader.Done("jobs"));
  absl::StatusOr<wire::JobMemory> memory = wire::MemoryFromBytes(bytes);
  if (!memory.ok()) return DataLoss("a row of jobs: ", std::string(memory.status().message()));
  job.memory = *std::move(memory);
  return job;
}

absl::StatusOr<v1::Plan> PlanOf(const Row& row) {
  Reader reader(row);
  (void)reader.Text();     // the job
  (void)reader.Integer();  // the plan's number
  EPLB_ASSIGN_OR_RETURN(v1::Plan plan, MessageOf<v1::Plan>(reader, "plans"));
  EPLB_RETURN_IF_ERROR(reader.Done("plans"));
  if (plan.result() == v1::PLAN_RESULT_UNSPECIFIED) return DataLoss("a plan has no result");
  return plan;
}

absl::StatusOr<std::vector<TypicalLoad>> TypicalLoadsOf(const Row& row) {
  Reader reader(row);
  (void)reader.Text();  // the job
  const int64_t num_layers = reader.Integer();
  const int64_t num_experts = reader.Integer();
  std::vector<TypicalLoad> loads;
  for (size_t cell = 3; cell < row.size() && loads.size() < kMaxTypicalLoads; cell += 4) {
    TypicalLoad& one = loads.emplace_back();
    one.num_steps = reader.Real();
    one.num_windows = reader.Real();
    one.age = reader.Integer();
    EPLB_ASSIGN_OR_RETURN(Load load, LoadFromFloats(reader.Bytes(), num_layers, num_experts));
    one.load = std::make_shared<const Load>(std::move(load));
    if (one.age < 0 || !(one.num_steps > 0 && one.num_steps < kMaxCount) ||
        !(one.num_windows > 0 && one.num_windows < kMaxCount)) {
      return DataLoss("a typical load stands for ", one.num_windows, " windows of ", one.num_steps,
                      " steps, ", one.age, " windows ago");
    }
  }
  EPLB_RETURN_IF_ERROR(reader.Done("loads"));
  return loads;
}

absl::StatusOr<v1::JobEvent> EventOf(const Row& row) {
  Reader reader(row);
  const int64_t sequence = reader.Integer();
  std::string job = reader.Text();
  (void)reader.Integer();  // by_operator
  EPLB_ASSIGN_OR_RETURN(v1::JobEvent event, MessageOf<v1::JobEvent>(reader, "events"));
  EPLB_RETURN_IF_ERROR(reader.Done("events"));
  event.set_sequence(static_cast<uint64_t>(sequence));
  event.set_job(std::move(job));
  return event;
}

absl::StatusOr<StoredWindow> WindowOf(const Row& row) {
  Reader reader(row);
  const int64_t number = reader.Integer();
  StoredWindow window{.job = reader.Text(), .figures = {}};
  EPLB_ASSIGN_OR_RETURN(window.figures, MessageOf<v1::Window>(reader, "windows"));
  EPLB_RETURN_IF_ERROR(reader.Done("windows"));
  window.figures.set_window(static_cast<uint64_t>(number));
  return window;
}

absl::StatusOr<core::DoneRequest> RequestOf(const Row& row) {
  Reader reader(row);
  (void)reader.Text();
  core::DoneRequest done;
  done.request_id = reader.Text();
  done.outcome = reader.Text();
  EPLB_RETURN_IF_ERROR(reader.Done("requests"));
  return done;
}

absl::StatusOr<PlacementRow> PlacementRowOf(const Row& row, const std::string& where) {
  Reader reader(row);
  const std::string job = reader.Text();
  const int64_t version = reader.Integer();
  (void)reader.Integer();
  const std::string bytes = reader.Bytes();
  const std::string digest = reader.Bytes();
  EPLB_RETURN_IF_ERROR(reader.Done("placements"));
  EPLB_ASSIGN_OR_RETURN(Placement placement, PlacementOf(bytes, digest, where, job));
  return PlacementRow{version, std::move(placement)};
}

absl::StatusOr<core::RanVersion> RanVersionOf(const Row& row) {
  Reader reader(row);
  (void)reader.Text();
  core::RanVersion ran{.version = reader.Integer()};
  (void)reader.Integer();
  (void)reader.Bytes();
  const std::string digest = reader.Bytes();
  EPLB_RETURN_IF_ERROR(reader.Done("placements"));
  if (digest.size() != ran.digest.bytes.size()) {
    return DataLoss("a row of placements has an unknown format");
  }
  std::copy(digest.begin(), digest.end(), ran.digest.bytes.begin());
  return ran;
}

Row RowOf(const core::StoredJob& job) {
  const std::string digest = job.placement ? BytesOf(DigestOf(*job.placement)) : "";
  return {job.job,
          job.version,
          sqlite::Bytes{digest},
          job.next_version,
          CellOf(job.end.value_or(v1::RunEnd())),
          sqlite::Bytes{wire::MemoryBytes(job.memory)}};
}

Row PlacementRowOf(const core::StoredJob& job, int64_t written) {
  const Placement& placement = *job.placement;
  return {job.job, job.version, written, sqlite::Bytes{PlacementToBytes(placement)},
          sqlite::Bytes{BytesOf(DigestOf(placement))}};
}

Row RowOf(const std::string& job, const core::DoneRequest& done) {
  return {job, done.request_id, done.outcome};
}

Row RowOf(const std::string& job, const v1::Plan& plan) {
  return {job, static_cast<int64_t>(plan.plan()), CellOf(plan)};
}

Row RowOf(const std::string& job, std::span<const TypicalLoad> loads) {
  Row row{job, int64_t{loads.front().load->num_layers()},
          int64_t{loads.front().load->num_experts()}};
  for (const TypicalLoad& one : loads) {
    row.emplace_back(std::bit_cast<int64_t>(one.num_steps));
    row.emplace_back(std::bit_cast<int64_t>(one.num_windows));
    row.emplace_back(one.age);
    row.emplace_back(sqlite::Bytes{FloatsOf(*one.load)});
  }
  return row;
}

Row RowOf(v1::JobEvent event) {
  const auto sequence = static_cast<int64_t>(event.sequence());
  const int64_t by_operator = event.actor().empty() ? 0 : 1;
  const std::string job = std::move(*event.mutable_job());
  event.clear_sequence();
  event.clear_job();
  return {sequence, job, by_operator, CellOf(std::move(event))};
}

Row RowOf(StoredWindow window) {
  const auto number = static_cast<int64_t>(window.figures.window());
  window.figures.clear_window();
  window.figures.clear_has_loads();
  return {number, std::move(window.job), CellOf(std::move(window.figures))};
}

}  // namespace eplb
