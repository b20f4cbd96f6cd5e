// A daemon that was elected, as far as its rows in etcd see it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "server/etcd/election.h"
#include "server/etcd/fenced_rows.h"
#include "tests/server/etcd/etcd_process.h"

namespace eplb::etcd {

class ElectedDaemon {
 public:
  explicit ElectedDaemon(std::string prefix,
                         std::unique_ptr<Client> client = SharedEtcd()->NewClient())
      : client_(std::move(client)),
        prefix_(std::move(prefix)),
        election_(client_.get(), {.prefix = prefix_, .lease = absl::Seconds(60)}) {
    const absl::StatusOr<bool> leads = election_.TryToLead("here:1");
    if (!leads.ok() || !*leads) std::abort();
  }

  FencedRowsOptions RowsOptions() {
    return {.client = client_.get(),
            .prefix = prefix_,
            .fence = election_.fence(),
            .lost = [this](const std::string& why) { lost_.push_back(why); }};
  }
  Client* client() { return client_.get(); }
  Election& election() { return election_; }
  const std::vector<std::string>& lost() const { return lost_; }

  // Behind the rows' back.
  void Put(const std::string& key, const std::string& value) {
    pb::TxnRequest request;
    pb::PutRequest& put = *request.add_success()->mutable_request_put();
    put.set_key(absl::StrCat(prefix_, "/", key));
    put.set_value(value);
    if (!client_->Txn(request, Soon()).ok()) std::abort();
  }
  // Returns the rows of etcd, by keys below the prefix.
  std::vector<std::pair<std::string, std::string>> Rows(const std::string& below) {
    pb::RangeRequest request;
    request.set_key(absl::StrCat(prefix_, "/", below));
    request.set_range_end(EndOfPrefix(request.key()));
    std::vector<std::pair<std::string, std::string>> rows;
    const pb::RangeResponse response = *client_->Range(request, Soon());
    for (const pb::KeyValue& pair : response.kvs()) {
      rows.emplace_back(pair.key().substr(prefix_.size() + 1), pair.value());
    }
    return rows;
  }
  // Returns the number of times that a key was written.
  int64_t WritesOf(const std::string& key) {
    pb::RangeRequest request;
    request.set_key(absl::StrCat(prefix_, "/", key));
    const pb::RangeResponse response = *client_->Range(request, Soon());
    return response.kvs().empty() ? 0 : response.kvs(0).version();
  }

 private:
  static absl::Time Soon() { return MonotonicNow() + absl::Seconds(10); }

  std::unique_ptr<Client> client_;
  std::string prefix_;
  Election election_;
  std::vector<std::string> lost_;
};

}  // namespace eplb::etcd
