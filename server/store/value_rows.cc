// Each value as the cells of its row: its key as cells of their own, the rest as one message.
#include "server/store/value_rows.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "proto/wire/messages.h"
#include "server/messages/records.h"
#include "server/store/placement_bytes.h"

namespace eplb {

namespace {

using sqlite::Cell;
using sqlite::Row;

// Reads a row's cells from the left. A cell of another kind than the reader asks for is an error.
class Reader {
 public:
  explicit Reader(const Row& row) : row_(row) {}

  int64_t Integer() { return Take<int64_t>(); }
  std::string Text() { return Take<std::string>(); }
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

// Returns the message in the next cell. errors: DataLoss with the table.
template <class Message>
absl::StatusOr<Message> MessageOf(Reader& reader, const char* table) {
  Message message;
  if (message.ParseFromString(reader.Bytes())) return message;
  return DataLoss("a row of ", table, " has a message that cannot be parsed");
}

absl::StatusOr<std::optional<core::RunEnd>> EndOf(const v1::RunEnd& message) {
  if (message.ending() == v1::RUN_ENDING_UNSPECIFIED) return std::nullopt;  // the run goes on
  EPLB_ASSIGN_OR_RETURN(core::RunEnd end, FromProto(message));
  return end;
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
  EPLB_ASSIGN_OR_RETURN(const v1::RunEnd end, MessageOf<v1::RunEnd>(reader, "jobs"));
  EPLB_ASSIGN_OR_RETURN(job.end, EndOf(end));
  const std::string bytes = reader.Bytes();
  EPLB_RETURN_IF_ERROR(reader.Done("jobs"));
  absl::StatusOr<wire::JobMemory> memory = wire::MemoryFromBytes(bytes);
  if (!memory.ok()) return DataLoss("a row of jobs: ", std::string(memory.status().message()));
  job.memory = *std::move(memory);
  return job;
}

absl::StatusOr<core::Plan> PlanOf(const Row& row) {
  Reader reader(row);
  (void)reader.Text();     // the job
  (void)reader.Integer();  // the plan's number
  EPLB_ASSIGN_OR_RETURN(const v1::Plan message, MessageOf<v1::Plan>(reader, "plans"));
  EPLB_RETURN_IF_ERROR(reader.Done("plans"));
  return FromProto(message);
}

absl::StatusOr<StoredEvent> EventOf(const Row& row) {
  Reader reader(row);
  const int64_t sequence = reader.Integer();
  std::string job = reader.Text();
  (void)reader.Integer();  // by_operator
  EPLB_ASSIGN_OR_RETURN(const v1::JobEvent message, MessageOf<v1::JobEvent>(reader, "events"));
  EPLB_RETURN_IF_ERROR(reader.Done("events"));
  EPLB_ASSIGN_OR_RETURN(StoredEvent stored, FromProto(message));
  stored.sequence = sequence;
  stored.event.job = std::move(job);
  return stored;
}

absl::StatusOr<StoredWindow> WindowOf(const Row& row) {
  Reader reader(row);
  const int64_t number = reader.Integer();
  StoredWindow window{.job = reader.Text(), .figures = {}};
  EPLB_ASSIGN_OR_RETURN(const v1::Window message, MessageOf<v1::Window>(reader, "windows"));
  EPLB_RETURN_IF_ERROR(reader.Done("windows"));
  EPLB_ASSIGN_OR_RETURN(window.figures, FromProto(message));
  window.figures.window = number;
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
  v1::RunEnd end;
  if (job.end) ToProto(*job.end, &end);
  const std::string digest = job.placement ? BytesOf(DigestOf(*job.placement)) : "";
  return {job.job,
          job.version,
          sqlite::Bytes{digest},
          job.next_version,
          sqlite::Bytes{end.SerializeAsString()},
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

Row RowOf(const std::string& job, const core::Plan& plan) {
  v1::Plan message;
  ToProto(plan, &message);
  return {job, plan.plan, sqlite::Bytes{message.SerializeAsString()}};
}

Row RowOf(const StoredEvent& stored) {
  v1::JobEvent message;
  ToProto(stored, &message);
  message.clear_sequence();
  message.clear_job();
  const int64_t by_operator = stored.event.actor.empty() ? 0 : 1;
  return {stored.sequence, stored.event.job, by_operator,
          sqlite::Bytes{message.SerializeAsString()}};
}

Row RowOf(const StoredWindow& window) {
  v1::Window message;
  ToProto(window.figures, &message);
  message.clear_window();
  message.clear_has_loads();
  return {window.figures.window, window.job, sqlite::Bytes{message.SerializeAsString()}};
}

}  // namespace eplb
