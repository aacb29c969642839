// The copy engine (TMA): boxes of a tensor to shared memory, swizzled on the way, without a register.
#pragma once
#include "common/types.cuh"

struct __align__(64) TensorMap {
    uint64 opaque[16];
};

// A box of a rank-2 or rank-3 tensor, innermost coordinate first; its bytes count at `barrier`. What lies outside the
// tensor arrives as zeros.
__device__ __forceinline__ void load_box(uint32 to, const TensorMap& map, uint32 barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
__device__ __forceinline__ void load_box(uint32 to, const TensorMap& map, uint32 barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}

// The same box to every block of the cluster named in `blocks`, at the same addresses, counting at the barrier of each.
__device__ __forceinline__ void load_box_to_all(uint32 to, const TensorMap& map, uint32 barrier, uint16 blocks, int x,
                                                int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%4, %5}], [%2], %3;" ::"r"(to), "l"(&map), "r"(barrier), "h"(blocks), "r"(x), "r"(y)
        : "memory");
}
