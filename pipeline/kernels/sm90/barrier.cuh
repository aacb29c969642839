// mbarriers, which count arrivals and bytes, and the barrier of a cluster.
#pragma once
#include "common/types.cuh"

__device__ __forceinline__ void init_barrier(uint32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Make initialised barriers visible to the other blocks of a cluster and to the copy engine.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}

// Arrive, and make the phase wait for copies of `bytes` more bytes.
__device__ __forceinline__ void arrive_expecting(uint32 barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrive at the barrier with this address in block `rank` of the cluster.
__device__ __forceinline__ void arrive_at(uint32 barrier, int rank) {
    asm volatile("{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(barrier), "r"(rank)
                 : "memory");
}

// Wait until the phase of this parity is complete.
__device__ __forceinline__ void wait_barrier(uint32 barrier, int parity) {
    asm volatile(
        "{.reg .pred done;\n"
        "WAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT_%=;}" ::"r"(barrier), "r"(parity)
        : "memory");
}

// Synchronise all threads of a cluster. The `.aligned` form would not do: in a warp with one busy thread, lanes arrive
// at different times.
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

// A position in a ring of STAGES buffers and the parity of its current round.
template <int STAGES>
struct Ring {
    int stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};
