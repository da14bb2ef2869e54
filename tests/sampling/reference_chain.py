"""The sampler chain for one row, written for clarity: what the arrays are compared with.

Lists of Python numbers in 64 bits, every sampler exactly as documented, no shortcuts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlxserver.sampling.params import SamplingParams

INF = math.inf


class Mt19937:
    """Matsumoto and Nishimura's generator, seeded with one 32-bit number."""

    def __init__(self, seed: int) -> None:
        self.state = [seed]
        for i in range(1, 624):
            last = self.state[-1]
            self.state.append((1812433253 * (last ^ last >> 30) + i) & 0xFFFFFFFF)
        self.at = 624

    def word(self) -> int:
        if self.at == 624:
            for i in range(624):
                y = self.state[i] & 0x80000000 | self.state[(i + 1) % 624] & 0x7FFFFFFF
                self.state[i] = self.state[(i + 397) % 624] ^ y >> 1 ^ (0x9908B0DF if y & 1 else 0)
            self.at = 0
        y = self.state[self.at]
        self.at += 1
        y ^= y >> 11
        y ^= y << 7 & 0x9D2C5680
        y ^= y << 15 & 0xEFC60000
        return y ^ y >> 18

    def double(self) -> float:
        low = self.word()
        return (low + self.word() * 2.0**32) / 2.0**64

    def float(self) -> float:
        return self.word() / 2.0**32


@dataclass
class Entry:
    id: int
    logit: float
    p: float = 0.0


class ReferenceChain:
    def __init__(
        self,
        params: SamplingParams,
        prompt: list[int],
        n_vocab: int,
        eog: frozenset[int] = frozenset(),
        eos: int = 0,
        texts: list[bytes] | None = None,
        encode: object = None,
    ) -> None:
        self.params, self.n_vocab, self.eog, self.eos = params, n_vocab, eog, eos
        self.texts, self.encode = texts or [], encode
        self.history = list(prompt)
        self.final = Mt19937(params.seed)
        self.xtc = [Mt19937(params.seed) for _ in params.samplers]
        self.mu = 2 * params.mirostat_tau
        self.decay = min(max(params.adaptive_decay, 0.0), 0.99)
        self.total = params.adaptive_target / (1 - self.decay)
        self.weight = 1 / (1 - self.decay)
        self.list: list[Entry] = []
        self.sorted = False

    def sample(self, logits: list[float]) -> int:
        self.list = [Entry(i, float(x)) for i, x in enumerate(logits)]
        self.sorted = False
        for token, bias in self.params.logit_bias:
            self.list[token].logit += bias
        if self.params.mirostat:
            self.temperature(plain=True)
            token = self.mirostat()
        else:
            for place, name in enumerate(self.params.samplers):
                if name == "xtc":
                    self.apply_xtc(self.xtc[place])
                elif name != "adaptive_p":
                    getattr(self, name)()
            token = self.adaptive() if "adaptive_p" in self.params.samplers else self.dist()
        self.history.append(token)
        return token

    def report(self) -> dict[int, float]:
        """The list with its probabilities: as it is if sorted, else by probability; the first 0 ends it."""
        listed = self.list if self.sorted else sorted(self.list, key=lambda e: -e.p)
        end = next((i for i, e in enumerate(listed) if e.p == 0), len(listed))
        return {e.id: e.p for e in listed[:end]}

    # -- helpers

    def softmax(self, sort: bool) -> None:
        if sort:
            self.sort()
        top = max(e.logit for e in self.list)
        for e in self.list:
            e.p = math.exp(e.logit - top)
        total = sum(e.p for e in self.list)
        for e in self.list:
            e.p /= total

    def sort(self) -> None:
        if not self.sorted:
            self.list.sort(key=lambda e: -e.logit)
            self.sorted = True

    def draw(self, u: float) -> Entry:
        target = u * sum(e.p for e in self.list)
        running = 0.0
        for e in self.list:
            running += e.p
            if running >= target and e.p > 0:
                return e
        return self.list[-1]

    # -- samplers

    def penalties(self) -> None:
        p = self.params
        if p.repeat_last_n <= 0 or (
            p.repeat_penalty == 1 and p.frequency_penalty == 0 and p.presence_penalty == 0
        ):
            return
        window = self.history[-p.repeat_last_n :]
        for e in self.list:
            count = window.count(e.id)
            if count:
                e.logit = e.logit * p.repeat_penalty if e.logit <= 0 else e.logit / p.repeat_penalty
                e.logit -= count * p.frequency_penalty + p.presence_penalty
        self.sorted = False

    def breakers(self) -> list[tuple[int, list[int]]]:
        table = []
        for text in self.params.dry_sequence_breakers:
            wanted = text.encode()[:40]
            for token, word in enumerate(self.texts):
                if not wanted:
                    continue
                if wanted in word:
                    table.append((token, []))
                    continue
                for n in range(1, len(wanted)):
                    if word.endswith(wanted[:n]):
                        table.append((token, self.encode(wanted[n:].decode())[:20]))
        return table

    def dry(self) -> None:
        p = self.params
        if p.dry_multiplier == 0 or p.dry_base < 1 or p.dry_penalty_last_n <= 0:
            return
        recent = self.history[-p.dry_penalty_last_n :][::-1]
        if len(recent) <= p.dry_allowed_length:
            return
        table = self.breakers()
        limit = len(recent)
        for i, token in enumerate(recent):
            matches = [
                len(tail)
                for head, tail in table
                if head == token and len(tail) <= i and recent[i - len(tail) : i][::-1] == tail
            ]
            if matches:
                limit = i - max(matches)
                break
        if limit < p.dry_allowed_length:
            return
        longest: dict[int, int] = {}
        for k in range(1, len(recent)):
            run = 0
            while k + run < len(recent) and recent[run] == recent[k + run]:
                run += 1
            run = min(run, limit)
            if run >= p.dry_allowed_length:
                longest[recent[k - 1]] = max(run, longest.get(recent[k - 1], 0))
        most = int(88.7228391 / math.log(p.dry_base)) if p.dry_base > 1.000001 else 0
        for e in self.list:
            if e.id in longest and (e.id, []) not in table:
                power = longest[e.id] - p.dry_allowed_length
                e.logit -= p.dry_multiplier * p.dry_base ** (min(power, most) if most else power)
        self.sorted = False

    def top_n_sigma(self) -> None:
        n = self.params.top_n_sigma
        if n <= 0 or len(self.list) <= 1:
            return
        finite = [e.logit for e in self.list if e.logit != -INF]
        mean = sum(finite) / len(finite)
        sigma = math.sqrt(sum((x - mean) ** 2 for x in finite) / len(finite))
        for e in self.list:
            if e.logit < max(finite) - n * sigma:
                e.logit = -INF

    def top_k(self) -> None:
        if self.params.top_k > 0:
            self.sort()
            self.list = self.list[: self.params.top_k]

    def typ_p(self) -> None:
        p = self.params
        if p.typical_p >= 1:
            return
        self.softmax(sort=True)
        entropy = -sum(e.p * math.log(e.p) for e in self.list if e.p > 0)
        self.list.sort(key=lambda e: abs(-math.log(e.p) - entropy) if e.p > 0 else INF)
        running = 0.0
        for i, e in enumerate(self.list):
            running += e.p
            if running > p.typical_p and i + 1 >= p.min_keep:
                self.list = self.list[: i + 1]
                break
        self.sorted = False

    def top_p(self) -> None:
        p = self.params
        if p.top_p >= 1:
            return
        self.softmax(sort=True)
        running = 0.0
        for i, e in enumerate(self.list):
            running += e.p
            if running >= p.top_p and i + 1 >= p.min_keep:
                self.list = self.list[: i + 1]
                break

    def min_p(self) -> None:
        p = self.params
        if p.min_p <= 0:
            return
        threshold = max(e.logit for e in self.list) + math.log(p.min_p)
        likely = [e for e in self.list if e.logit >= threshold]
        if len(likely) < max(1, p.min_keep):
            self.sort()
            likely = self.list[: max(1, p.min_keep)]
        self.list = likely

    def apply_xtc(self, random: Mt19937) -> None:
        p = self.params
        if p.xtc_probability <= 0 or p.xtc_threshold > 0.5 or len(self.list) < 2:
            return
        if random.float() > p.xtc_probability:
            return
        self.softmax(sort=True)
        last = 0
        for i, e in enumerate(self.list):
            if e.p < p.xtc_threshold:
                break
            last = i
        if last > 0 and len(self.list) - last >= p.min_keep:
            self.list = self.list[last:]

    def temperature(self, plain: bool = False) -> None:
        p = self.params
        if p.dynatemp_range <= 0 or plain:
            self.cool(p.temperature)
        elif len(self.list) > 1:
            self.softmax(sort=True)
            entropy = -sum(e.p * math.log(e.p) for e in self.list if e.p > 0)
            low, high = max(0.0, p.temperature - p.dynatemp_range), p.temperature + p.dynatemp_range
            share = max(entropy, 0.0) / math.log(len(self.list))
            self.cool(low + (high - low) * share**p.dynatemp_exponent)

    def cool(self, temperature: float) -> None:
        best = max(self.list, key=lambda e: e.logit)
        for e in self.list:
            if temperature > 0:
                e.logit /= temperature
            elif e is not best:
                e.logit = -INF

    def infill(self) -> None:
        self.softmax(sort=True)
        p_eog = sum(e.p for e in self.list if e.id in self.eog)
        p_text = sum(e.p for e in self.list if e.id not in self.eog)
        if 3 * p_eog * len(self.list) > p_text:
            self.list = [e for e in self.list if e.id in self.eog]
            return
        for a in self.list:
            for b in self.list:
                if a is b or -INF in (a.logit, b.logit) or not self.texts[a.id]:
                    continue
                if self.texts[b.id].startswith(self.texts[a.id]):
                    to, gone = (b, a) if b.p > a.p else (a, b)
                    to.p += gone.p
                    gone.logit, gone.p = -INF, 0.0
        kept = [e for e in self.list if e.id in self.eog or e.p >= 0.2]
        n_text = sum(e.id not in self.eog for e in kept)
        if n_text == 0:
            self.list = [Entry(self.eos, 1.0)]
            return
        total = sum(e.p for e in kept)
        self.list = [e for e in kept if e.id in self.eog or e.p / total >= 1 / (n_text + 1)]

    # -- the end of a chain

    def dist(self) -> int:
        self.softmax(sort=False)
        return self.draw(self.final.double()).id

    def adaptive(self) -> int:
        p = self.params
        self.softmax(sort=False)
        original = {e.id: e.p for e in self.list}
        if p.adaptive_target >= 0:
            wanted = min(max(p.adaptive_target, 0.0), 1.0)
            wanted = min(max(2 * wanted - self.total / self.weight, 0.0), 1.0)
            for e in self.list:
                if e.logit != -INF:
                    distance = abs((e.p - wanted) / 0.3)
                    e.logit = 5 - 10 * distance**2 / (1 + distance)
            self.softmax(sort=False)
        chosen = self.draw(self.final.double()) if len(self.list) > 1 else self.list[0]
        self.total = original[chosen.id] + self.decay * self.total
        self.weight = 1 + self.decay * self.weight
        return chosen.id

    def mirostat(self) -> int:
        p = self.params
        self.softmax(sort=True)
        if p.mirostat == 1:
            self.list = self.list[: self.zipf_k()]
        else:
            likely = [e for e in self.list if e.p > 0 and -math.log2(e.p) <= self.mu]
            self.list = likely or self.list[:1]
        self.softmax(sort=True)
        chosen = self.draw(self.final.double()) if len(self.list) > 1 else self.list[0]
        self.mu -= p.mirostat_eta * (-math.log2(chosen.p) - p.mirostat_tau)
        return chosen.id

    def zipf_k(self) -> int:
        pairs = list(zip(self.list, self.list[1:], strict=False))[:99]
        t = [math.log((i + 2) / (i + 1)) for i in range(len(pairs))]
        if not pairs or pairs[0][1].logit == -INF:
            return 1
        b = [a.logit - c.logit for a, c in pairs]
        s = sum(x * y for x, y in zip(t, b, strict=True)) / sum(x * x for x in t)
        e = s - 1
        power = (e * 2**self.mu) / (1 - self.n_vocab**-e)
        k = power ** (1 / s)
        return max(int(k), 1) if k < 2**31 else 1
