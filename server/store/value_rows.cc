#include "server/store/value_rows.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/digest.h"
#include "placement/topology.h"
#include "proto/wire/messages.h"
#include "server/messages/records.h"

namespace eplb {

namespace {

using sqlite::Cell;
using sqlite::Row;

// Reads a row's cells from the left. A cell of another kind than asked for makes it fail.
class Reader {
 public:
  explicit Reader(const Row& row) : row_(row) {}

  int64_t Integer() { return Take<int64_t>(); }
  std::string Text() { return Take<std::string>(); }
  std::string Bytes() { return Take<sqlite::Bytes>().bytes; }
  template <class T>
  std::optional<T> Maybe() {
    if (next_ < row_.size() && std::holds_alternative<std::monostate>(row_[next_])) {
      ++next_;
      return std::nullopt;
    }
    return Take<T>();
  }
  absl::Status Done(const std::string& what) const {
    if (good_ && next_ == row_.size()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("a row of ", what, " has an unknown format"));
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

// The message in the next cell. errors: DataLoss, naming the table.
template <class Message>
absl::StatusOr<Message> MessageOf(Reader& reader, const char* table) {
  Message message;
  if (message.ParseFromString(reader.Bytes())) return message;
  return absl::DataLossError(
      absl::StrCat("a row of ", table, " has a message that cannot be parsed"));
}

absl::StatusOr<std::optional<core::RunEnd>> EndOf(const v1::RunEnd& message) {
  if (message.ending() == v1::RUN_ENDING_UNSPECIFIED) return std::nullopt;  // it lives
  EPLB_ASSIGN_OR_RETURN(core::RunEnd end, FromProto(message));
  return end;
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
  if (!memory.ok()) {
    return absl::DataLossError(
        absl::StrCat("a row of jobs: ", std::string(memory.status().message())));
  }
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
  (void)reader.Integer();  // whether it is an operator's
  EPLB_ASSIGN_OR_RETURN(const v1::JobEvent message, MessageOf<v1::JobEvent>(reader, "events"));
  EPLB_RETURN_IF_ERROR(reader.Done("events"));
  StoredEvent stored = FromProto(message);
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
  window.figures = FromProto(message);
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

namespace {

absl::Status ReadRequests(sqlite::Connection& connection, core::StoredJob* job) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows,
                        connection.Prepare("SELECT job, request_id, outcome, checksum FROM "
                                           "requests WHERE job = ? ORDER BY sequence"));
  rows.BindText(job->job);
  return ForEachRow(std::move(rows), "requests", 0, [job](const Row& row) {
    EPLB_ASSIGN_OR_RETURN(core::DoneRequest done, RequestOf(row));
    job->requests.push_back(std::move(done));
    return absl::OkStatus();
  });
}

absl::Status ReadPlans(sqlite::Connection& connection, core::StoredJob* job) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows,
                        connection.Prepare("SELECT * FROM plans WHERE job = ? ORDER BY plan"));
  rows.BindText(job->job);
  return ForEachRow(std::move(rows), "plans", 0, [job](const Row& row) {
    EPLB_ASSIGN_OR_RETURN(core::Plan plan, PlanOf(row));
    job->plans.push_back(std::move(plan));
    return absl::OkStatus();
  });
}

// Which placements are kept, in the order in which they were written.
absl::Status ReadHistory(sqlite::Connection& connection, core::StoredJob* job) {
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement rows,
      connection.Prepare("SELECT version, digest FROM placements WHERE job = ? ORDER BY written"));
  rows.BindText(job->job);
  for (;;) {
    EPLB_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return absl::OkStatus();
    core::RanVersion ran{.version = rows.Integer(0)};
    const std::string digest = rows.Bytes(1);
    if (digest.size() != ran.digest.bytes.size()) {
      return absl::DataLossError("a row of placements has an unknown format");
    }
    std::copy(digest.begin(), digest.end(), ran.digest.bytes.begin());
    job->history.push_back(ran);
  }
}

// The first in the order of writing that the query gives.
absl::StatusOr<Placement> FirstPlacement(sqlite::Statement rows, const std::string& job,
                                         int64_t version) {
  const std::string path = rows.path();
  std::optional<Placement> result;
  const absl::Status read = ForEachRow(std::move(rows), "placements", 0, [&](const Row& row) {
    if (result) return absl::OkStatus();
    EPLB_ASSIGN_OR_RETURN(PlacementRow found, PlacementRowOf(row, path));
    result = std::move(found.placement);
    return absl::OkStatus();
  });
  EPLB_RETURN_IF_ERROR(read);
  if (result) return *std::move(result);
  return absl::NotFoundError(absl::StrCat("version ", version, " of job ", job, " is not kept"));
}

// The one that the job's own row names; none when it names none.
absl::StatusOr<std::optional<Placement>> PlacementInForce(sqlite::Connection& connection,
                                                          const JobRow& job) {
  if (job.digest.empty()) return std::nullopt;
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement rows,
      connection.Prepare("SELECT * FROM placements WHERE job = ? AND version = ? AND digest = ?"));
  rows.BindText(job.job).Bind(job.version).BindBytes(job.digest);
  absl::StatusOr<Placement> placement = FirstPlacement(std::move(rows), job.job, job.version);
  if (placement.ok()) return *std::move(placement);
  if (!absl::IsNotFound(placement.status())) return placement.status();
  return absl::DataLossError(std::string(placement.status().message()));
}

}  // namespace

absl::StatusOr<Leadership> ReadLeadership(sqlite::Connection& connection) {
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement rows,
      connection.Prepare("SELECT term, schema, moved_aside_unix_micros, checksum FROM leadership"));
  std::vector<Leadership> found;
  EPLB_RETURN_IF_ERROR(ForEachRow(std::move(rows), "leadership", 0, [&found](const Row& row) {
    Reader reader(row);
    Leadership leadership;
    leadership.term = reader.Integer();
    leadership.schema = reader.Integer();
    if (const auto micros = reader.Maybe<int64_t>()) {
      leadership.moved_aside = absl::FromUnixMicros(*micros);
    }
    found.push_back(leadership);
    return reader.Done("leadership");
  }));
  if (found.size() == 1) return found.front();
  return absl::DataLossError(absl::StrCat("leadership has ", found.size(), " rows, expected 1"));
}

absl::Status InsertLeadership(sqlite::Connection& connection, const Leadership& leadership) {
  std::optional<int64_t> moved_aside;
  if (leadership.moved_aside) moved_aside = absl::ToUnixMicros(*leadership.moved_aside);
  return Insert(
      connection, "leadership", "only, term, schema, moved_aside_unix_micros, checksum",
      {int64_t{0}, leadership.term, kStoreSchema, moved_aside ? Cell(*moved_aside) : Cell()}, 1);
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

absl::Status InsertJob(sqlite::Connection& connection, const core::StoredJob& job) {
  return Insert(connection, "jobs", "", RowOf(job));
}

absl::Status InsertPlacement(sqlite::Connection& connection, const core::StoredJob& job,
                             int64_t written) {
  return Insert(connection, "placements", "", PlacementRowOf(job, written));
}

absl::Status InsertRequest(sqlite::Connection& connection, const std::string& job,
                           const core::DoneRequest& done) {
  return Insert(connection, "requests", "job, request_id, outcome, checksum", RowOf(job, done));
}

absl::Status InsertPlan(sqlite::Connection& connection, const std::string& job,
                        const core::Plan& plan) {
  return Insert(connection, "plans", "", RowOf(job, plan));
}

absl::Status InsertEvent(sqlite::Connection& connection, const StoredEvent& stored) {
  Row row = RowOf(stored);
  // NULL makes SQLite draw the next sequence; the checksum does not cover it.
  if (stored.sequence == 0) row.front() = Cell();
  return Insert(connection, "events", "", row, 1);
}

absl::Status InsertWindow(sqlite::Connection& connection, const StoredWindow& window) {
  return Insert(connection, "windows", "", RowOf(window));
}

absl::StatusOr<std::vector<core::StoredJob>> ReadAllJobs(sqlite::Connection& connection) {
  std::vector<JobRow> found;
  EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows,
                        connection.Prepare("SELECT * FROM jobs ORDER BY job"));
  const absl::Status read = ForEachRow(std::move(rows), "jobs", 0, [&found](const Row& row) {
    EPLB_ASSIGN_OR_RETURN(JobRow job, JobOf(row));
    found.push_back(std::move(job));
    return absl::OkStatus();
  });
  EPLB_RETURN_IF_ERROR(read);
  std::vector<core::StoredJob> jobs;
  for (JobRow& row : found) {
    EPLB_ASSIGN_OR_RETURN(std::optional<Placement> placement, PlacementInForce(connection, row));
    jobs.push_back({.job = std::move(row.job),
                    .version = row.version,
                    .next_version = row.next_version,
                    .placement = std::move(placement),
                    .memory = std::move(row.memory),
                    .end = std::move(row.end)});
    EPLB_RETURN_IF_ERROR(ReadRequests(connection, &jobs.back()));
    EPLB_RETURN_IF_ERROR(ReadPlans(connection, &jobs.back()));
    EPLB_RETURN_IF_ERROR(ReadHistory(connection, &jobs.back()));
  }
  return jobs;
}

namespace {

absl::StatusOr<std::vector<StoredEvent>> EventsOf(sqlite::Statement rows) {
  std::vector<StoredEvent> events;
  const absl::Status read = ForEachRow(std::move(rows), "events", 1, [&events](const Row& row) {
    EPLB_ASSIGN_OR_RETURN(StoredEvent event, EventOf(row));
    events.push_back(std::move(event));
    return absl::OkStatus();
  });
  EPLB_RETURN_IF_ERROR(read);
  return events;
}

}  // namespace

absl::StatusOr<std::vector<StoredEvent>> ReadSomeEvents(sqlite::Connection& connection,
                                                        const std::string& job, int32_t limit,
                                                        int64_t after_sequence) {
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement rows,
      connection.Prepare(after_sequence == 0
                             ? "SELECT * FROM events WHERE job = ? AND sequence > ? "
                               "ORDER BY sequence DESC LIMIT ?"
                             : "SELECT * FROM (SELECT * FROM events WHERE job = ? AND "
                               "sequence > ? ORDER BY sequence LIMIT ?) ORDER BY sequence DESC"));
  rows.BindText(job).Bind(after_sequence).Bind(std::max(limit, 0));
  return EventsOf(std::move(rows));
}

absl::StatusOr<std::vector<StoredEvent>> ReadEventsOfAllJobs(sqlite::Connection& connection,
                                                             std::optional<int64_t> after_sequence,
                                                             int32_t limit) {
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement rows,
      connection.Prepare(after_sequence
                             ? "SELECT * FROM events WHERE sequence > ? ORDER BY sequence LIMIT ?"
                             : "SELECT * FROM (SELECT * FROM events WHERE sequence > ? "
                               "ORDER BY sequence DESC LIMIT ?) ORDER BY sequence"));
  rows.Bind(after_sequence.value_or(0)).Bind(std::max(limit, 0));
  return EventsOf(std::move(rows));
}

absl::StatusOr<std::vector<StoredWindow>> ReadAllWindows(sqlite::Connection& connection) {
  EPLB_ASSIGN_OR_RETURN(const int64_t tables,
                        connection.FirstInteger("SELECT count(*) FROM sqlite_schema WHERE type = "
                                                "'table' AND name = 'windows'"));
  if (tables == 0) return std::vector<StoredWindow>();
  EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows,
                        connection.Prepare("SELECT * FROM windows ORDER BY window"));
  std::vector<StoredWindow> windows;
  const absl::Status read = ForEachRow(std::move(rows), "windows", 0, [&windows](const Row& row) {
    EPLB_ASSIGN_OR_RETURN(StoredWindow window, WindowOf(row));
    windows.push_back(std::move(window));
    return absl::OkStatus();
  });
  EPLB_RETURN_IF_ERROR(read);
  return windows;
}

absl::StatusOr<bool> DropDamagedWindows(sqlite::Connection& connection) {
  const absl::Status read = ReadAllWindows(connection).status();
  if (!absl::IsDataLoss(read)) return read.ok() ? absl::StatusOr<bool>(false) : read;
  EPLB_RETURN_IF_ERROR(connection.Execute("DELETE FROM windows"));
  return true;
}

absl::StatusOr<Placement> ReadOnePlacement(sqlite::Connection& connection, const std::string& job,
                                           int64_t version) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows,
                        connection.Prepare("SELECT * FROM placements WHERE job = ? AND version = ? "
                                           "ORDER BY written LIMIT 1"));
  rows.BindText(job).Bind(version);
  return FirstPlacement(std::move(rows), job, version);
}

absl::Status CheckEveryRow(sqlite::Connection& connection) {
  struct Table {
    const char* query;
    size_t first_checked;
  };
  for (const Table& table :
       {Table{"SELECT * FROM leadership", 1}, Table{"SELECT * FROM placements", 0},
        Table{"SELECT * FROM plans", 0}, Table{"SELECT * FROM requests", 1},
        Table{"SELECT * FROM events", 1}}) {
    EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows, connection.Prepare(table.query));
    EPLB_RETURN_IF_ERROR(ForEachRow(std::move(rows), table.query, table.first_checked,
                                    [](const Row&) { return absl::OkStatus(); }));
  }
  EPLB_RETURN_IF_ERROR(ReadLeadership(connection).status());
  return ReadAllJobs(connection).status();
}

absl::StatusOr<Placement> PlacementOf(const std::string& bytes, const std::string& digest,
                                      const std::string& path, const std::string& job) {
  absl::StatusOr<Placement> placement = PlacementFromBytes(bytes);
  if (!placement.ok()) {
    return absl::DataLossError(
        absl::StrCat(path, ": job \"", job, "\": ", std::string(placement.status().message())));
  }
  const Digest computed = DigestOf(*placement);
  if (digest == BytesOf(computed)) return placement;
  return absl::DataLossError(absl::StrCat(path, ": job \"", job,
                                          "\": the stored placement's digest is not ",
                                          computed.Hex(), ", the digest of its maps"));
}

namespace {

constexpr std::string_view kMagic = "EPLBPLC1";
constexpr size_t kShapeNumbers = 6;
constexpr size_t kNumberBytes = 4;

void Append(int32_t number, std::string* out) {
  const auto bits = static_cast<uint32_t>(number);
  for (uint32_t shift = 0; shift < 32; shift += 8) {
    out->push_back(static_cast<char>((bits >> shift) & 0xffU));
  }
}

int32_t NumberAt(std::string_view bytes, size_t index) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kNumberBytes; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[index * kNumberBytes + i]);
    bits |= static_cast<uint32_t>(byte) << (8 * i);
  }
  return static_cast<int32_t>(bits);
}

void AppendMatrix(const IndexMatrix& matrix, std::string* out) {
  for (Eigen::Index i = 0; i < matrix.size(); ++i) Append(matrix.data()[i], out);
}

IndexMatrix MatrixAt(std::string_view bytes, size_t first, const Topology& topology) {
  IndexMatrix matrix(topology.num_layers(), topology.num_slots());
  for (Eigen::Index i = 0; i < matrix.size(); ++i) {
    matrix.data()[i] = NumberAt(bytes, first + static_cast<size_t>(i));
  }
  return matrix;
}

absl::Status Unreadable(const std::string& why) {
  return absl::DataLossError(absl::StrCat("a stored placement is not readable: ", why));
}

}  // namespace

std::string PlacementToBytes(const Placement& placement) {
  const Topology& topology = placement.topology();
  std::string bytes(kMagic);
  bytes.reserve(kMagic.size() +
                kNumberBytes *
                    (kShapeNumbers + 2 * static_cast<size_t>(placement.replica_rank().size())));
  for (const int32_t number : {topology.num_layers(), topology.num_experts(), topology.num_slots(),
                               topology.num_gpus(), topology.num_nodes(), topology.num_groups()}) {
    Append(number, &bytes);
  }
  AppendMatrix(placement.physical_to_logical_map(), &bytes);
  AppendMatrix(placement.replica_rank(), &bytes);
  return bytes;
}

absl::StatusOr<Placement> PlacementFromBytes(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) return Unreadable("wrong magic");
  bytes.remove_prefix(kMagic.size());
  if (bytes.size() < kShapeNumbers * kNumberBytes) return Unreadable("it ends within the shape");
  const absl::StatusOr<Topology> topology = Topology::Make({.num_layers = NumberAt(bytes, 0),
                                                            .num_experts = NumberAt(bytes, 1),
                                                            .num_slots = NumberAt(bytes, 2),
                                                            .num_gpus = NumberAt(bytes, 3),
                                                            .num_nodes = NumberAt(bytes, 4),
                                                            .num_groups = NumberAt(bytes, 5)});
  if (!topology.ok()) return Unreadable(std::string(topology.status().message()));
  const size_t cells =
      static_cast<size_t>(topology->num_layers()) * static_cast<size_t>(topology->num_slots());
  const size_t expected = kNumberBytes * (kShapeNumbers + 2 * cells);
  if (bytes.size() != expected) {
    return Unreadable(absl::StrCat(bytes.size(), " bytes, its shape needs ", expected));
  }
  absl::StatusOr<Placement> placement =
      Placement::FromSlotsAndRanks(*topology, MatrixAt(bytes, kShapeNumbers, *topology),
                                   MatrixAt(bytes, kShapeNumbers + cells, *topology));
  if (!placement.ok()) return Unreadable(std::string(placement.status().message()));
  return placement;
}

}  // namespace eplb
