
-- Fast path for exact windows: runs of equal requests, each run on a key of its own, with a clock that moves forward.
-- The fast path runs before the other parts of the script are defined. If it cannot answer a run, it leaves the run to
-- the rest of the script and has then written nothing to that key. zset.lua explains the stored layout.
--
-- reply  for a fully granted run `GrantedRun`: Rust derives the other fields of `RunReply`, because an entry recorded
--        now expires after one window
--        for any other run `RunReply`
--
-- Cost: if every entry costs the same (see `m`), the script counts expired entries by removing them, or with ZCOUNT if
-- there may be more of them than one call may remove. It finds the entry whose expiry makes room by its rank.

do
  -- The requests are runs, and each has a line of its own.
  local request_count = Batch.at(plan, 0)
  local heads, quota_tags, supported, reserved = nil, nil, true, 0
  if request_count > 1 then
    -- Foreign data must be found before anything is written.
    heads, quota_tags = {}, {}
    local stored_tag = ARGV[2]
    for i = 1, request_count do
      local key = KEYS[i]
      if ARGV[3] then
        local quota_tag = Line.at(plan, Batch.SIZE + (i - 1) * Line.SIZE)
        stored_tag = ARGV[quota_tag]
      end
      local head = call('ZMSCORE', key, 'u', stored_tag)
      heads[i], quota_tags[i] = head, stored_tag
      if not head[2] and (head[1] or call('EXISTS', key) == 1) then supported = false break end
      if head[2] and head[1] then
        head[1] = head[1] + 0
        local differs, latest = head[1] % 0.5 > 0, math.floor(-head[2])
        local window = Line.at(plan, Batch.SIZE + (i - 1) * Line.SIZE)
        local cut = now - window
        if latest <= cut and (differs or head[1] < -8) then
          if head[1] % 1 > 0 and head[1] % 1 <= 0.5 then latest = math.max(latest, -call('ZSCORE', key, 'l')) end
          if latest <= cut then
            if not drop_key(key) then return 1 end
            heads[i], differs = {}, false
          end
        end
        if differs then reserved = reserved - head[1] end
      end
    end
    if supported and reserved > trims then
      -- Summing up entries of different costs may exceed the budget of this call, and then nothing may be decided. So
      -- the script checks the budget before it writes anything.
      reserved = 0
      for i = 1, request_count do
        local used, newest = heads[i][1], heads[i][2]
        if used and used % 0.5 > 0 then
          local latest = math.max(now, -newest)
          if used % 1 < 0.5 then latest = math.max(latest, -call('ZSCORE', KEYS[i], 'l')) end
          local window = Line.at(plan, Batch.SIZE + (i - 1) * Line.SIZE)
          reserved = reserved + call('ZCOUNT', KEYS[i], '1', format('%d', latest - window))
        end
      end
      supported = reserved <= trims
    end
  end
  if supported then
    local at = format('%d', now)
    local minus_at = '-' .. at
    local left, window, capacity, period, ttl, modulus, cut, cut_at, plain = request_count
    local first_run = Batch.SIZE + request_count * Line.SIZE
    for i = 1, request_count do
      local key = KEYS[i]
      local times, cost, same_quota = RequestHead.Run.at(plan, first_run + (i - 1) * RequestHead.Run.SIZE)
      -- Most runs have the same quota as the run before.
      if same_quota == 0 then
        window, capacity, period, ttl, modulus = Line.at(plan, Batch.SIZE + (i - 1) * Line.SIZE)
        cut = now - window
        cut_at, plain = format('%d', cut), format('%x', now % modulus)
      end
      local quota_tag, head
      if heads then
        quota_tag, head = quota_tags[i], heads[i]
      else
        quota_tag = ARGV[2]
        head = cost == 1 and call('ZMSCORE', key, 'u', quota_tag) or call('ZMSCORE', key, 'u', quota_tag, 'm')
      end
      local fresh = not head[2]
      local used, newest, uniform_cost, later, newest_at = 0, 0, 1, 0, minus_at
      supported = not head[1]
      if not fresh then
        used, newest = -head[1], -head[2]
        -- A fraction of a half says that the count has notes, so the script writes the fraction back.
        if newest % 1 > 0 then newest, newest_at = newest - 0.5, minus_at .. '.5' end
        local more = used % 1
        if more > 0 then
          used = used - more
          if more >= 0.5 then later, more = -call('ZSCORE', key, 'l'), more - 0.5 end
          -- In a batch of several runs, the script has not read `m` yet. If `u` says that `m` is not 1, a run of cost 1
          -- does not read `m` either: it assumes that the costs differ, and writes `m` as 0.
          if more > 0 then uniform_cost = cost == 1 and heads and 0 or -(head[3] or call('ZSCORE', key, 'm')) end
        end
        supported = newest < now and later < now
      elseif supported and not heads then
        supported = call('EXISTS', key) == 0
      end
      if supported then
        local gone, kept, left_in, found, empty = 0, 0, 0, nil, false
        if not fresh then
          if newest <= cut and later <= cut and (uniform_cost == 0 or used > 8 * uniform_cost) then
            -- All entries have expired: dropping the key is cheaper than removing the entries, unless they are few.
            if not drop_key(key) then return 1 end
            gone, newest, uniform_cost, newest_at, fresh = used, 0, 1, minus_at, true
          elseif uniform_cost > 0 then
            local up_to, expired = cut_at, nil
            if used > (trims - reserved) * uniform_cost then
              expired = call('ZCOUNT', key, '1', cut_at)
              local most = trims - reserved
              if expired > most then
                local rank = format('%d', 3 + most)
                up_to = most > 0 and call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] or '1'
              end
            end
            local removed = call('ZREMRANGEBYSCORE', key, '1', up_to)
            trims = trims - removed
            gone = uniform_cost * (expired or removed)
            if expired then left_in, kept = expired - removed, uniform_cost * (expired - removed) end
            empty = gone == used and kept == 0
          else
            found = call('ZRANGEBYSCORE', key, '1', cut_at, 'LIMIT', '0', '256')
            for n = 1, #found do
              local star = string.find(found[n], '*', 1, true)
              gone = gone + (star and string.match(found[n], '^%d+', star + 1) or 1)
            end
            supported = #found < 256
          end
          used = used - gone
        end
        local room = capacity - used
        local granted = 0
        if room >= cost then
          granted = times == 1 and 1 or (room - room % cost) / cost
          if granted > times then granted = times end
        end
        if granted < times and uniform_cost == 0 then supported = false end
        if supported then
          local before, retry, expires = used, 0, false
          if granted > 0 then
            local total = granted * cost
            local name
            if granted > 1 then
              name = format('%s*%d.%d', plain, total, granted)
            elseif cost > 1 then
              name = format('%s*%d', plain, total)
            else
              name = plain
            end
            used = used + total
            local stored = used + kept
            if found and found[1] then call('ZREMRANGEBYSCORE', key, '1', cut_at) end
            if fresh then
              call('ZADD', key, format(total == 1 and '-%d' or '-%d.25', used), 'u', minus_at, quota_tag, at, name,
                format('-%d', total), 'm', '0', 'l')
            elseif total ~= uniform_cost and uniform_cost > 0 then
              -- If the new entry is the only entry, its cost is the uniform cost.
              local new_uniform_cost = empty and total or 0
              call('ZADD', key, format(new_uniform_cost == 1 and '-%d' or '-%d.25', stored), 'u', newest_at, quota_tag, at,
                name, new_uniform_cost == 0 and '0' or format('-%d', new_uniform_cost), 'm')
            elseif uniform_cost == 0 and cost == 1 and heads then
              call('ZADD', key, format('-%d.25', stored), 'u', newest_at, quota_tag, at, name, '0', 'm')
            else
              call('ZADD', key, format(uniform_cost == 1 and '-%d' or '-%d.25', stored), 'u', newest_at, quota_tag, at, name)
            end
            expires = now - now % period > newest
            newest = now
          elseif gone > 0 then
            call('ZADD', key, format(uniform_cost == 1 and '-%d.5' or '-%d.75', used + kept), 'u', format('-%d', now), 'l')
          end
          if granted < times then
            local nth = used + cost - capacity + uniform_cost - 1
            nth = (nth - nth % uniform_cost) / uniform_cost
            retry = window
            if nth * uniform_cost <= before then
              local rank = format('%d', 3 + left_in + nth)
              retry = call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + window - now
            end
          end
          -- The expiry is set last: see `expire_at` in common.lua.
          if expires then call('PEXPIRE', key, format('%d', math.ceil(ttl / 1000))) end
          if granted == times then
            if not heads then
              return ReplyHead.RunHead.GrantedRun.pack({ at = now, form = RunForm.Granted, used = used })
            end
            early_replies[i] = RunHead.GrantedRun.pack({ form = RunForm.Granted, used = used })
          else
            early_replies[i] = RunHead.RunReply.pack({
              form = RunForm.Full, granted = granted, used = used, retry_after = retry,
              reset_after = used > 0 and newest + window - now or 0, recorded_at = now, first_seq = 0, lower_bound = 0,
            })
          end
          left = left - 1
        end
      end
    end
    if left == 0 then return ReplyHead.pack({ at = now }) .. table.concat(early_replies) end
  end
end
