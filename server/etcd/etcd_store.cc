// Opens the store of the daemon that leads.
#include "server/etcd/etcd_store.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "server/store/keys.h"

namespace eplb::etcd {
namespace {

std::string NoteOf(const std::vector<std::string>& rows) {
  constexpr ptrdiff_t kNamed = 4;
  const ptrdiff_t named = std::min(std::ssize(rows), kNamed);
  std::string note = absl::StrJoin(rows.begin(), rows.begin() + named, "; ");
  const ptrdiff_t more = std::ssize(rows) - named;
  if (more > 0) absl::StrAppend(&note, "; and ", more, " more unreadable rows");
  return note;
}

}  // namespace

StoreLimits LimitsInEtcd(StoreLimits wanted) {
  return {
      .max_events = std::min(wanted.max_events, kMostInEtcd.max_events),
      .max_operator_events = std::min(wanted.max_operator_events, kMostInEtcd.max_operator_events),
      .max_history = std::min(wanted.max_history, kMostInEtcd.max_history),
      .max_plans = std::min(wanted.max_plans, kMostInEtcd.max_plans),
      .max_requests = std::min(wanted.max_requests, kMostInEtcd.max_requests)};
}

absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(const EtcdStoreOptions& options) {
  auto rows = std::make_unique<FencedRows>(options.rows);
  EPLB_RETURN_IF_ERROR(rows->Load());
  // A write for every window of every job would outnumber all other writes and fill etcd's history.
  // The chart of a new leader begins with its own windows.
  auto store = std::make_unique<Store>(
      std::move(rows), StoreOptions{.limits = options.limits,
                                    .where = absl::StrCat("etcd key ", options.rows.prefix, "/"),
                                    .least_term = options.least_term,
                                    .part_bytes = options.part_bytes,
                                    .keeps_windows = false});
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> unreadable, store->Load());
  store->set_opening_note(NoteOf(unreadable));
  return store;
}

absl::StatusOr<bool> IsAnyStored(Client* client, const std::string& prefix,
                                 const std::set<std::string>& jobs, absl::Time deadline) {
  pb::TxnRequest request;
  for (const std::string& job : jobs) {
    request.add_success()->mutable_request_range()->set_key(
        absl::StrCat(prefix, "/", JobKey(job, "record")));
  }
  EPLB_ASSIGN_OR_RETURN(const pb::TxnResponse found, client->Txn(request, deadline));
  return std::ranges::any_of(found.responses(),
                             [](const auto& one) { return !one.response_range().kvs().empty(); });
}

}  // namespace eplb::etcd
