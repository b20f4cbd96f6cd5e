// A connection that takes no more bytes until its peer reads.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "client/rows/control/socket.h"
#include "client/rows/link_setup.h"

namespace eplb {

class StuffedLink {
 public:
  // Link to rank 1, which is in post 1.
  StuffedLink() {
    std::array<int, 2> ends = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    far_ = Fd(ends[1]);
    const std::array<std::byte, 4096> bytes = {};
    while (write(ends[0], bytes.data(), bytes.size()) > 0) {
    }
    while (write(ends[0], bytes.data(), 1) > 0) {
    }
    std::vector<PeerLink> links;
    links.push_back(PeerLink({.rank = RankId{1}, .fd = Fd(ends[0]), .staging_bytes = 64}));
    links.front().posted = 1;
    links_ = LinkSet(std::move(links));
  }

  LinkSet& links() { return links_; }
  PeerLink& link() { return links_.Of(RankId{1}); }

  // The peer reads all that has come.
  void Read() {
    std::array<std::byte, 4096> bytes;
    while (read(far_.get(), bytes.data(), bytes.size()) > 0) {
    }
  }

 private:
  Fd far_;
  LinkSet links_ = LinkSet({});
};

}  // namespace eplb
