// Transactions of etcd that compare the fence and the serial, and what is learnt when one is not
// answered.
#include "server/etcd/fenced_rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"

namespace eplb::etcd {
namespace {

constexpr int64_t kPage = 32;    // rows of one read
constexpr int kMaxAttempts = 4;  // attempts of one write
constexpr absl::Duration kMostOfAWrite = absl::Seconds(3);
constexpr int kTripsOfAWrite = 6;  // to a slow etcd
// Time for which writes fail at once after a write that etcd did not answer. A decision with many
// effects then blocks the core's thread only once.
constexpr absl::Duration kPauseAfterFailure = absl::Milliseconds(500);

constexpr char kSerial[] = "serial";

}  // namespace

absl::Status FencedRows::Load() {
  const std::lock_guard lock(writing_);
  return ReadRows();
}

void FencedRows::Close() {
  const std::lock_guard lock(writing_);
  MemoryKeyValues::Close();
}

absl::Status FencedRows::ReadRows() {
  Rows rows;
  int64_t serial_revision = 0;
  const std::string first = options_.prefix + "/";
  pb::RangeRequest request;
  request.set_key(first);
  request.set_range_end(EndOfPrefix(first));
  request.set_limit(kPage);
  for (bool more = true; more;) {
    EPLB_ASSIGN_OR_RETURN(const pb::RangeResponse page,
                          options_.client->Range(request, options_.write_until()));
    for (const pb::KeyValue& pair : page.kvs()) {
      const std::string key = pair.key().substr(first.size());
      if (pair.key() == options_.fence.key || key.starts_with("knock/")) continue;
      if (key == kSerial) {
        serial_revision = pair.mod_revision();
        continue;
      }
      rows.emplace(key, pair.value());
    }
    if (!page.kvs().empty()) request.set_key(page.kvs(page.kvs_size() - 1).key() + '\0');
    request.set_revision(page.header().revision());  // all pages are of one moment
    more = page.more();
  }
  serial_revision_ = serial_revision;
  const std::lock_guard lock(mutex_);
  rows_ = std::move(rows);
  return absl::OkStatus();
}

pb::TxnRequest FencedRows::TransactionOf(const Batch& batch) const {
  pb::TxnRequest request;
  pb::Compare& leads = *request.add_compare();
  leads.set_target(pb::Compare::CREATE);
  leads.set_key(options_.fence.key);
  leads.set_create_revision(options_.fence.create_revision);
  pb::Compare& newest = *request.add_compare();
  newest.set_target(pb::Compare::MOD);
  newest.set_key(Absolute(kSerial));
  newest.set_mod_revision(serial_revision_);
  for (const auto& [key, value] : batch.puts) {
    pb::PutRequest& put = *request.add_success()->mutable_request_put();
    put.set_key(Absolute(key));
    put.set_value(value);
  }
  pb::PutRequest& serial = *request.add_success()->mutable_request_put();
  serial.set_key(Absolute(kSerial));
  serial.set_value(absl::StrCat(options_.fence.create_revision));
  for (const std::string& key : batch.deletes) {
    request.add_success()->mutable_request_delete_range()->set_key(Absolute(key));
  }
  for (const std::string& prefix : batch.deleted_prefixes) {
    pb::DeleteRangeRequest& range = *request.add_success()->mutable_request_delete_range();
    range.set_key(Absolute(prefix));
    range.set_range_end(EndOfPrefix(Absolute(prefix)));
  }
  request.add_failure()->mutable_request_range()->set_key(options_.fence.key);
  return request;
}

absl::Status FencedRows::OtherLeads(const std::string& address) {
  const std::string why = address.empty()
                              ? std::string("etcd refused a write: no daemon leads any more")
                              : absl::StrCat("etcd refused a write: ", address, " leads");
  options_.lost(why);
  return absl::FailedPreconditionError(why);
}

// Learns what etcd holds when a write happened that was not answered. One that did not happen never
// will once a later one has, for both compare the same revision of the serial.
absl::Status FencedRows::Settle(absl::Time deadline) {
  pb::RangeRequest request;
  request.set_key(Absolute(kSerial));
  EPLB_ASSIGN_OR_RETURN(const pb::RangeResponse found, options_.client->Range(request, deadline));
  const int64_t revision = found.kvs().empty() ? 0 : found.kvs(0).mod_revision();
  return revision == serial_revision_ ? absl::OkStatus() : ReadRows();
}

absl::StatusOr<bool> FencedRows::Attempt(const Batch& batch, absl::Time deadline) {
  const absl::StatusOr<pb::TxnResponse> response =
      options_.client->Txn(TransactionOf(batch), deadline);
  if (!response.ok()) {
    unsure_ = true;
    return response.status();
  }
  if (response->succeeded()) {
    serial_revision_ = response->header().revision();
    unsure_ = false;
    const std::lock_guard lock(mutex_);
    Apply(batch, &rows_);
    return true;
  }
  const pb::RangeResponse& leader = response->responses(0).response_range();
  if (leader.kvs().empty()) return OtherLeads("");
  if (leader.kvs(0).create_revision() != options_.fence.create_revision) {
    return OtherLeads(leader.kvs(0).value());
  }
  EPLB_RETURN_IF_ERROR(Settle(deadline));
  return false;
}

absl::StatusOr<bool> FencedRows::AttemptAll(const Makes& make, absl::Time deadline) {
  if (unsure_) EPLB_RETURN_IF_ERROR(Settle(deadline));
  for (const Batch& batch : make(RowsReader(&rows_))) {
    EPLB_ASSIGN_OR_RETURN(const bool done, Attempt(batch, deadline));
    if (!done) return false;
  }
  return true;
}

absl::Status FencedRows::Write(const Makes& make) {
  const std::lock_guard lock(writing_);
  if (!open_) return StoreClosed();
  EPLB_RETURN_IF_ERROR(options_.may_write());
  const absl::Time begin = MonotonicNow();
  if (begin < refuse_until_) return refused_;
  const absl::Duration most =
      std::max(kMostOfAWrite, kTripsOfAWrite * options_.client->round_trip());
  const absl::Time deadline = std::min(begin + most, options_.write_until());
  absl::Status failure = absl::UnavailableError("other writes changed the rows at every try");
  for (int attempt = 0; attempt < kMaxAttempts && MonotonicNow() < deadline; ++attempt) {
    const absl::StatusOr<bool> done = AttemptAll(make, deadline);
    if (done.ok() && *done) return absl::OkStatus();
    if (done.ok()) continue;
    failure = done.status();
    if (!absl::IsUnavailable(failure) && !absl::IsDeadlineExceeded(failure)) break;
  }
  refuse_until_ = MonotonicNow() + kPauseAfterFailure;
  refused_ = absl::UnavailableError(failure.message());
  return refused_;
}

}  // namespace eplb::etcd
