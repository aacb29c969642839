// How the host launches a kernel: made by a tile type of pipeline/kernels/tiles.py, asserted by the kernel.
#pragma once

// SHARED_BYTES: dynamic shared memory of a block. SHARED_LIMIT: the most that a block can use on the target
// architecture; pipeline/kernels/compile.py defines it from the same file.
template <int THREADS_, int SHARED_BYTES_>
struct Launch {
    static constexpr int THREADS = THREADS_, SHARED_BYTES = SHARED_BYTES_;
    static_assert(SHARED_BYTES <= SHARED_LIMIT, "shared memory of a block on this architecture");
};
