// One of several daemons that share a store in etcd: it stands by until it is elected, and leads
// until it is not.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/config/config.h"
#include "server/etcd/client.h"
#include "server/etcd/election.h"
#include "server/http/http_server.h"
#include "server/rpc/standby_server.h"
#include "server/store/store.h"

namespace eplb {

// threads: one at a time, but for what the parts do on their own threads.
class StandbyDaemon {
 public:
  // Serves as a standby when it returns. errors: those of listening and of TLS files. An etcd that
  // does not answer is none.
  static absl::StatusOr<std::unique_ptr<StandbyDaemon>> Start(const DaemonConfig& config);

  // With the ports in use, which stay those of the daemon when it leads.
  Address grpc_address() const { return config_.grpc(); }
  Address http_address() const { return config_.http(); }

  // True when this daemon was elected. Else another one leads, or etcd did not answer, and about
  // `most` has passed or the leader has gone.
  bool Turn(absl::Duration most);
  // Holds the lead, opens the store and stops to stand by: the addresses are free. lost: called on
  // another thread once another daemon may lead; it ends the process. errors: those of
  // OpenEtcdStore. serves_nobody: as Election::Hold.
  absl::StatusOr<std::unique_ptr<Store>> Lead(std::function<void(const std::string& why)> lost,
                                              std::function<bool()> serves_nobody);
  // The store is closed: another daemon may lead at once.
  void Resign() { election_->Resign(); }
  // Returns one sentence about what is wrong with etcd; empty if nothing is wrong. Never waits.
  std::string Trouble() const { return client_->Trouble(); }

 private:
  explicit StandbyDaemon(const DaemonConfig& config) : config_(config) {}
  absl::Status Serve();
  HttpServer::Sources SourcesOfStandby() const;
  void Tell(const absl::StatusOr<bool>& leads);
  // True if the leader should give way because ranks of `jobs` came here: it knows one of the jobs,
  // or this daemon does not reach it either. A stranger's rank is no reason.
  bool MissTheLeader(const std::set<std::string>& jobs);

  DaemonConfig config_;  // its addresses with the ports in use
  std::unique_ptr<etcd::Client> client_;
  std::unique_ptr<etcd::Election> election_;
  std::unique_ptr<StandbyServer> rpc_;
  std::unique_ptr<HttpServer> http_;
  absl::Time missed_ = absl::InfinitePast();  // the newest turn whose ranks missed the leader
  std::string told_;                          // the newest line about who leads
};

}  // namespace eplb
